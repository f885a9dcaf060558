"""Imports go one way, along a call's. All of them count: in functions, and for types alone, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tvmconvgrad"
ORDER = (
    # what needs neither a target nor a kernel
    *("version", "computed_once", "spec", "common", "files", "csrc", "workers"),
    *("nvidia", "machines"),  # what kernels are for
    *("te", "tir", "cache", "records", "schedules", "compiler"),  # how a kernel comes about
    *("layers", "reference"),  # what kernels are built for, and compared with
    *("runtime", "bundles", "kernels", "futures", "operators"),  # a kernel's call
    *("preparing", "deploy", "__init__"),  # many kernels at once; the public names
    *("frontends", "torch", "jax", "bench", "tuning", "demo", "cli", "__main__"),  # who uses all this
)
"""The parts of the package. Each imports none that stands behind it."""


def modules() -> dict[str, Path]:
    """All modules by their dotted names, without the package's."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imported(text: str) -> Iterator[str]:
    """The modules of this package that a text imports: in functions, and for types alone, too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import names the package"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _is_module(name) else str(node.module) for name in names]
        else:
            continue
        yield from (name.partition(".")[2] or "__init__" for name in names if _is_module(name))


def _is_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == PACKAGE.name and (rest or "__init__") in MODULES


def part(module: str) -> str:
    """The part of the package that a module belongs to."""
    return module.partition(".")[0]


GRAPH = {name: set(imported(path.read_text())) - {name} for name, path in MODULES.items()}


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports of parts that stand behind the importing one."""
    place = {name: number for number, name in enumerate(ORDER)}
    return sorted(
        f"{importer} imports {name}"
        for importer, names in graph.items()
        for name in names
        if place[part(name)] > place[part(importer)]
    )


def test_every_part_has_its_place() -> None:
    assert {part(name) for name in MODULES} <= set(ORDER)


def test_nothing_imports_upwards() -> None:
    assert upward(GRAPH) == []


def test_no_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_an_import_is_found_wherever_it_is_written() -> None:
    text = """
import tvmconvgrad.spec.problem
from tvmconvgrad import te
from tvmconvgrad.te import views, Expression
from tvmconvgrad.cli import main
if TYPE_CHECKING:
    from tvmconvgrad.runtime.kernel import Kernel
def late():
    from tvmconvgrad import Target
"""
    found = {"spec.problem", "te", "te.views", "cli", "runtime.kernel", "__init__"}
    assert set(imported(text)) == found
    assert "spec imports cli" in upward({"spec": found})
    assert "cli imports te" not in upward({"cli": found})


def test_no_attribute_of_a_caller_has_a_lock_that_a_fork_may_leave_taken() -> None:
    """functools.cached_property has one before Python 3.12. Compilers are in processes that do not fork."""
    theirs = ("te", "tir", "schedules", "compiler", "bench", "tuning", "demo", "cli")
    texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if part(name) not in theirs}
    assert len(texts) > 100
    assert not [name for name, text in texts.items() if "import cached_property" in text or "@functools.cached" in text]
