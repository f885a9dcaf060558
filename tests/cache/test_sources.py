"""The cache's key: an edit of whatever a build runs changes it, and no other edit does."""

from __future__ import annotations

import ast
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvmconvgrad
from tvmconvgrad.cache import sources
from tvmconvgrad.machines.backends import BACKENDS

PACKAGE = Path(tvmconvgrad.__file__).parent
COMPILERS = [BACKENDS["llvm"].sources, BACKENDS["cuda"].sources]
"""For each kind of target the modules that a build begins in, the compiler first."""
C_FILES = {
    "csrc/library.c",
    "csrc/floating_point.c",
    "csrc/openmp.c",
    "csrc/services.c",
    "csrc/memory.c",
    "csrc/threads.c",
    "csrc/calling.c",
    "csrc/python.c",
}
EVERY_COMPILER = pytest.mark.parametrize("compiler", COMPILERS)

# Builds with every function noted that runs; for GPUs without NVIDIA's compiler, which is not ours.
TRACED = """
import importlib, sys, threading
import tvmconvgrad as cg
from tvmconvgrad.machines import targets
before, ran = set(sys.modules), set()
def note(frame, event, _):
    if event == "call":
        ran.add(frame.f_code.co_filename)
compiler, _ = map(importlib.import_module, {compiler!r})
imported = {{sys.modules[name].__file__ for name in set(sys.modules) - before if name.startswith("tvmconvgrad.")}}
if "cuda" in compiler.__name__:
    from tvmconvgrad.compiler.cuda import toolkit
    toolkit.compile_source = lambda source, arch: toolkit.Code(b"", "none", ())
ones = dict(strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1))
filters = cg.ConvolutionBackpropFilters(**ones, filter_shape=(3, 3, 16, 64))
data = cg.ConvolutionBackpropData(**ones)
problems = [
    filters.problem((2, 14, 14, 16), (2, 14, 14, 64), dtype="f16"),
    data.problem((2, 14, 14, 64), (3, 3, 16, 64), dtype="f32"),
]
threading.setprofile(note)
sys.setprofile(note)
for target, problem in zip({targets}, problems):
    compiler.compile_problem(problem, targets.parse_target(target))
sys.setprofile(None)
print(*sorted(imported | {{file for file in ran if file.startswith({package!r})}}), sep="\\n")
"""
TARGETS = (["llvm -mcpu=x86-64-v3", "llvm -mcpu=native -algorithm=auto"], ["cuda -arch=sm_80", "cuda -arch=sm_90a"])


def places(files: Iterator[Path] | set[Path]) -> set[str]:
    return {file.relative_to(PACKAGE).as_posix() for file in files}


@pytest.mark.parametrize(("compiler", "targets"), list(zip(COMPILERS, TARGETS, strict=True)), ids=["CPU", "GPU"])
def test_all_that_a_build_runs_is_in_the_key(compiler: tuple[str, str], targets: list[str]) -> None:
    code = TRACED.format(compiler=compiler, targets=targets, package=f"{PACKAGE}{os.sep}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(PACKAGE.parent), *filter(None, sys.path)))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    ran = places({Path(line) for line in done.stdout.split()})
    assert len(ran) > 60
    assert ran <= set(sources.closure(*compiler))


class Imports(ast.NodeVisitor):
    """What a module imports as it runs, by Python's own parser."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)
        for each in node.orelse:
            self.visit(each)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0
        self.names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}


def files_of(module: str) -> list[Path]:
    """A module's file and its packages', the outermost excepted."""
    path, found = PACKAGE, []
    for part in module.split(".")[1:]:
        path /= part
        found += [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()]
    return found


@EVERY_COMPILER
def test_imports_are_found_as_by_a_parser(compiler: tuple[str, str]) -> None:
    found: set[Path] = set()
    wanted = list(compiler)
    while wanted:
        for file in files_of(wanted.pop()):
            if file not in found:
                found.add(file)
                imports = Imports()
                imports.visit(ast.parse(file.read_bytes()))
                wanted += [name for name in imports.names if name.startswith("tvmconvgrad")]
    assert set(sources.closure(*compiler)) == places(found)


def test_imports_in_every_form() -> None:
    text = b"""from tvmconvgrad.a import (
    one,  # and more
    two as other,
)
from typing import TYPE_CHECKING
import tvmconvgrad.b.c as d
if TYPE_CHECKING:
    from tvmconvgrad.never import X

    import tvmconvgrad.neither
def late():
    from tvmconvgrad import e
    if TYPE_CHECKING:
        import tvmconvgrad.nor
    else:
        import tvmconvgrad.f
from tvmconvgrad_other import g
"""
    found = {name for name in sources.imported(text) if name.startswith("tvmconvgrad.")}
    assert found - {"tvmconvgrad.a.and", "tvmconvgrad.a.more", "tvmconvgrad.a.as", "tvmconvgrad.a.other"} == {
        *("tvmconvgrad.a", "tvmconvgrad.a.one", "tvmconvgrad.a.two"),
        *("tvmconvgrad.b.c", "tvmconvgrad.e", "tvmconvgrad.f"),
    }


digest = sources.digest.__wrapped__
"""Without what was computed before."""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, which keys are now computed from."""
    copy = tmp_path / "tvmconvgrad"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "_ROOT", str(copy))
    return copy


def test_an_edit_of_any_file_changes_the_keys_of_what_is_built_from_it(copy: Path) -> None:
    before = digest(*COMPILERS[1])
    changes = set()
    for file in (path for path in copy.rglob("*") if path.is_file()):
        content = file.read_bytes()
        file.write_bytes(content + b"\n")
        if digest(*COMPILERS[1]) != before:
            changes.add(file.relative_to(copy).as_posix())
        file.write_bytes(content)
    assert digest(*COMPILERS[1]) == before
    machines = {path.relative_to(copy).as_posix() for path in copy.glob("machines/*pus/*.json")}
    assert len(machines) >= 10
    assert changes - {"py.typed"} == set(sources.closure(*COMPILERS[1])) | machines
    some = {"machines/targets.py", "records/choice.py", "spec/geometry.py", "spec/problem.py", "nvidia/tensor_maps.py"}
    assert some <= changes
    apart = ("cli/", "bench/", "demo/", "layers/", "tuning/", "deploy/", "operators/", "kernels.py", "reference.py")
    assert not [file for file in changes if file.startswith(apart)]


def test_an_edit_of_the_c_that_is_linked_in_changes_the_keys_of_cpus_alone(copy: Path) -> None:
    before = [digest(*compiler) for compiler in COMPILERS]
    for file in sorted(C_FILES):
        content = (copy / file).read_bytes()
        (copy / file).write_bytes(content + b"\n")
        assert [digest(*compiler) == old for compiler, old in zip(COMPILERS, before, strict=True)] == [False, True], (
            file
        )
        (copy / file).write_bytes(content)


def test_a_new_module_and_a_new_file_change_the_key(copy: Path) -> None:
    found = [digest(*COMPILERS[0])]
    (copy / "schedules/machines.json").write_text("{}")
    found.append(digest(*COMPILERS[0]))
    (copy / "schedules/new.py").write_text("")
    assert digest(*COMPILERS[0]) == found[-1]  # nobody imports it
    with (copy / "schedules/base.py").open("a") as file:
        file.write("import tvmconvgrad.schedules.new\n")
    found.append(digest(*COMPILERS[0]))
    (copy / "schedules/new.py").write_text("x = 1\n")
    found.append(digest(*COMPILERS[0]))
    assert len(set(found)) == 4


@pytest.mark.parametrize("form", ["archive", "without its text"])
def test_other_installations_have_a_key(form: str, tmp_path: Path) -> None:
    def key() -> str:
        code = f"from tvmconvgrad.cache import sources; print(sources.digest(*{COMPILERS[0]!r}))"
        environment = os.environ | {"PYTHONPATH": str(tmp_path / ("all.zip" if form == "archive" else ""))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(file: Path) -> None:
        place = "tvmconvgrad" / file.relative_to(PACKAGE)
        if form == "archive":
            with zipfile.ZipFile(tmp_path / "all.zip", "a") as archive:
                archive.write(file, place)
            return
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        kept = Path(importlib.util.cache_from_source(str(file)))
        if file.suffix == ".py" and not kept.exists():
            py_compile.compile(str(file), cfile=str(tmp_path / place.with_suffix(".pyc")))
        elif file.suffix == ".py":
            shutil.copy(kept, tmp_path / place.with_suffix(".pyc"))

    last = PACKAGE / "te/operands.py"
    for file in PACKAGE.rglob("*.py"):
        if file != last:
            install(file)
    one = key()
    install(last)
    assert len({one, key(), key(), sources.digest(*COMPILERS[0]) + "\n"}) == 3
