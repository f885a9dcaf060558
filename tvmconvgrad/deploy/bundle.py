"""From layers to a bundle: every kernel compiled for every target, linked, described, and put in place in one step."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconvgrad import csrc
from tvmconvgrad.bundles import manifest
from tvmconvgrad.bundles.manifest import BundledKernel, Code, File, Manifest
from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import linking, service
from tvmconvgrad.compiler.description import describe
from tvmconvgrad.deploy import describing
from tvmconvgrad.deploy.cpu_checks import best_first, check_in_c
from tvmconvgrad.deploy.describing import Wanted
from tvmconvgrad.deploy.render import ALIGNMENT, render, symbol
from tvmconvgrad.deploy.replacing import EDITABLE, replacing
from tvmconvgrad.deploy.toolchain import Toolchain
from tvmconvgrad.layers import LayerGradient
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records import lookup
from tvmconvgrad.runtime.native import OPENMP_SYMBOL, PYTHON_SYMBOL
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced

if TYPE_CHECKING:
    from tvmconvgrad.workers.worker import Worker

Progress = Callable[[str, int, int], None]
"""Called before each step with what it is, how many are done, and how many there are."""

# What csrc/services.c fills for all kernels. Whatever else TVM puts into an object stays the object's own:
# functions of the same name, made for each object's CPU, of which the first one would serve all, and crash on a lesser
# CPU.
_HOOKS = ("__TVMBackendParallelLaunch", "__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace")
_TEXTS = {
    "bundle.h.jinja": "{name}.h",
    "example.c.jinja": "example.c",
    "CMakeLists.txt.jinja": "CMakeLists.txt",
    "config.cmake.jinja": "{name}Config.cmake",
    "bundle.pc.jinja": "{name}.pc",
}


@dataclass(frozen=True)
class BundlePlan:
    """A bundle to be built. `targets` are in the order in which they are tried; `requires` is what each one needs."""

    name: str
    wanted: Sequence[Wanted]
    requires: Mapping[Target, frozenset[str]]
    architecture: str
    static: bool


def make_plan(
    name: str, gradients: Sequence[LayerGradient], targets: Sequence[Target], architecture: str, static: bool
) -> BundlePlan:
    """What it takes to build a bundle. ValueError for a CPU that LLVM does not know, or that cannot be told apart."""
    needs = dict(zip(targets, service.required_features(targets)))
    for target in targets:
        check_in_c(target, needs[target], architecture)
    requires = {target: needs[target] for target in best_first(needs)}
    return BundlePlan(name, describing.name_all(name, gradients), requires, architecture, static)


def build_bundle(plan: BundlePlan, folder: Path, progress: Progress, options: tuple[str, ...] = ()) -> None:
    """Build a bundle and make it `folder`, whose old bundle it replaces.

    `options` go to the C compiler. Raises ValueError where `folder` is anything else than a bundle, MissingLinker where
    no C compiler works, and OSError where the folder cannot be written.
    """
    tools = Toolchain(linking.find_compiler(plan.architecture), MissingLinker, options)
    linking.check_compiler(plan.architecture)
    tools.check(plan.static)
    with replacing(folder) as new, tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as work:
        kernels, objects = _compile_all(plan, tools, Path(work), progress)
        libraries = describing.libraries(plan.name, plan.static)
        made = describing.describe(plan.name, kernels, plan.requires, plan.architecture, libraries)
        checks = {str(target): check_in_c(target, needs, plan.architecture) for target, needs in plan.requires.items()}
        _link(made, checks, objects, tools, Path(work), new)
        for template, name in _TEXTS.items():
            text = render(template, made, checks)
            (new / name.format(name=plan.name)).write_text(text, encoding="ascii", newline="\n")
        (new / manifest.FILE).write_text(with_hashes(made, new).to_json(), encoding="ascii")


def _compile_all(
    plan: BundlePlan, tools: Toolchain, work: Path, progress: Progress
) -> tuple[list[BundledKernel], list[Path]]:
    """The kernels as the manifest has them, and the object files of all of them."""
    found: list[BundledKernel] = []
    objects: list[Path] = []
    empty = [describing.without_code(wanted) for wanted in plan.wanted]
    entries = [symbol(kernel, place) for kernel in empty for place in range(len(plan.requires))]
    pairs = [(kernel.problem, target) for kernel in empty for target in plan.requires]
    makers = [maker(problem, target, entry) for (problem, target), entry in zip(pairs, entries)]
    with closing(service.make_all(makers)) as made:
        for wanted, kernel in zip(plan.wanted, empty):
            for target in plan.requires:
                progress(f"{wanted.name} {target}", len(objects), len(pairs))
                path, entry = work / f"{len(objects)}.o", entries[len(objects)]
                kernel = _with_code(plan, kernel, target, next(made), path)
                tools.hide_all_but(path, [f"__tvm_ffi_{entry}", *_HOOKS])
                objects.append(path)
            found.append(kernel)
    progress("linking", len(objects), len(pairs))
    return found, objects


Made = tuple[tuple[bytes, dict[str, Any]], str]
"""A kernel's code and facts, and where its numbers come from."""


def maker(problem: Problem, target: Target, entry: str | None = None) -> Callable[[Worker], Made]:
    """How a worker makes a bundle's kernel, by the logs' choice if there is one: its object file with this entry, or
    what a GPU loads."""
    same = reduced(problem)
    order = service.Order(describe(same, target), same, target, None, None)
    make = service.making(order, entry)
    return lambda worker: lookup.make_tuned(same, target, lambda choice: make(worker, choice))


def _with_code(plan: BundlePlan, kernel: BundledKernel, target: Target, made: Made, path: Path) -> BundledKernel:
    """A kernel with the code for one more target, which is written to a file."""
    (built, facts), origin = made
    path.write_bytes(built)
    digest = hashlib.sha256(built).hexdigest()
    library, _ = describing.libraries(plan.name, static=True)
    code = Code(str(target), facts["schedule"], origin, facts["workspace_bytes"], library, digest)
    return replace(
        kernel,
        codes=(*kernel.codes, code),
        workspace_bytes=max(kernel.workspace_bytes, stack_bytes(facts["workspace_pieces"])),
        workspace_bytes_per_thread=max(kernel.workspace_bytes_per_thread, stack_bytes(facts["work_item_pieces"])),
    )


def stack_bytes(pieces: Sequence[int]) -> int:
    """What pieces of memory take on a stack of csrc/memory.c: each is rounded up and has a header."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT for size in pieces)


def _link(
    made: Manifest, checks: Mapping[str, str], objects: list[Path], tools: Toolchain, work: Path, folder: Path
) -> None:
    source, header = work / "bundle.c", work / f"{made.name}.h"
    header.write_text(render("bundle.h.jinja", made, checks), encoding="ascii")
    source.write_text(render("bundle.c.jinja", made, checks), encoding="ascii")
    here = Path(__file__).parent
    tools.compile(source, work / "bundle.o", [work, here, csrc.FOLDER])
    tools.join([work / "bundle.o", *objects], work / "all.o")
    tools.hide_all_but(work / "all.o", public_symbols(made))
    tools.share(work / "all.o", folder / str(made.library))
    if f"lib{made.name}.a" in made.files:
        tools.archive(work / "all.o", folder / f"lib{made.name}.a")


def public_symbols(made: Manifest) -> list[str]:
    """What a bundle's header declares, and what Python calls (csrc/python.c, openmp.c)."""
    declared = ("status_text", "set_threads", "get_threads", "set_launcher", "target", "get_kernel")
    return [f"{made.name}_{word}" for word in (*declared, PYTHON_SYMBOL, OPENMP_SYMBOL)] + [
        kernel.function for kernel in made.kernels
    ]


def with_hashes(made: Manifest, folder: Path) -> Manifest:
    """The manifest with all files that are in the folder."""
    paths = sorted(path for path in folder.iterdir() if path.name not in EDITABLE)
    contents = {path.name: path.read_bytes() for path in paths}
    files = {name: File(len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}
    return replace(made, files=files)
