"""The way from a problem to a kernel that can be called: from memory, from the cache on disk, or built now."""

from __future__ import annotations

import functools
import hashlib
import platform
import threading
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from tvmconvgrad.choice import Choice, made_by
from tvmconvgrad.compiling.cache import KernelCache
from tvmconvgrad.deploy import registry
from tvmconvgrad.runtime.cuda import driver
from tvmconvgrad.runtime.cuda.function import CudaFunction
from tvmconvgrad.runtime.cuda.launches import Launch
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.native import Function, load_function
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.merging import merged
from tvmconvgrad.targets import Target, check_host, host_features, own_architecture, parse_target
from tvmconvgrad.tuning import lookup
from tvmconvgrad.tuning.logs import warn_set_aside

# What determines the code of a kernel besides the problem and the target: a change here makes cached kernels stale.
_SOURCES = (
    "te",
    "schedules",
    "compiling/pipeline.py",
    "compiling/transposition.py",
    "compiling/rows.py",
    "compiling/masking.py",
    "compiling/pairs.py",
    "compiling/shuffles.py",
    "compiling/spreading.py",
    "compiling/statements.py",
    "compiling/streaming.py",
    "compiling/c_tools.py",
    "compiling/compiler.py",
    "compiling/cuda",
    "runtime/cuda/launches.py",
    "compiling/library.c",
    "compiling/services.c",
    "compiling/calling.c",
    "compiling/python.c",
)


class _Loaded:
    """One built kernel in this process, filled once by the thread that comes first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.content: tuple[Function | CudaFunction | None, dict[str, Any]] | None = None


_loaded: dict[tuple[str, Target, str | None, Choice | None], _Loaded] = {}


def get_kernel(
    problem: Problem,
    target: Target | None = None,
    schedule: str | None = None,
    tuned: bool = True,
    gpu: int | None = None,
) -> Kernel:
    """The kernel of a problem for this machine: of a bundle in use, else from the cache or built now.

    Without `target` it is a bundle's for whatever target that runs here, else one for this very CPU, or for the GPU of
    number `gpu`. Outside of bundles it is the one that a tuning log has, unless a schedule is forced or `tuned` is
    false. Raises MissingKernel when no bundle has it and it must not be built, ValueError when the target's code cannot
    run here or no schedule has the name, CacheFolderError when the cache folder is not the user's alone, MissingLinker
    or MissingToolkit when it has to be built and there is no C compiler or none for GPUs, MissingGpu without the
    driver.
    """
    there = None if gpu is None or target is not None else driver.driver().architecture(gpu)
    if any(prod(shape) == 0 for shape in (*problem.input_shapes, problem.output_shape)):
        return _kind(target, there)(problem, target or _default(there), "zero()", 0, None)
    bundled = registry.find(problem, target, schedule, there)
    if bundled is not None:
        return bundled
    target = target or (_default(there) if there else None)
    registry.check_building(problem, target)
    target = target or parse_target()
    same = merged(problem)
    found = lookup.find(same, target) if tuned and schedule is None else lookup.Tuned(None, lookup.DEFAULT)
    slot = _loaded.setdefault((same.key, target, schedule, found.choice), _Loaded())
    with slot.lock:
        if slot.content is None:
            slot.content = _load(same, target, schedule, found.choice)
        function, facts = slot.content
    origin = lookup.DEFAULT if facts.get("set_aside") else found.origin
    return _kind(target)(problem, target, facts["schedule"], facts["workspace_bytes"], function, origin)


def _default(there: str | None) -> Target:
    return Target() if there is None else Target("cuda", arch=own_architecture(there))


def _kind(target: Target | None, there: str | None = None) -> type[Kernel]:
    """A CPU's kernel or a GPU's."""
    if (target or _default(there)).kind != "cuda":
        return Kernel
    from tvmconvgrad.runtime.cuda.kernel import CudaKernel

    return CudaKernel


def describe(
    problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None
) -> dict[str, Any]:
    """All that determines a kernel's code, as JSON's types: the cache's key."""
    import importlib.metadata  # a fifth of the time that importing this package takes, and not for bundled kernels

    return {
        "problem": problem.key,
        "target": str(target),
        "schedule": schedule,
        "choice": None if choice is None else choice.to_dict(),
        "sources": _sources_digest(),
        "apache-tvm": importlib.metadata.version("apache-tvm"),
        "apache-tvm-ffi": importlib.metadata.version("apache-tvm-ffi"),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _load(
    problem: Problem, target: Target, schedule: str | None, choice: Choice | None
) -> tuple[Function | CudaFunction, dict[str, Any]]:
    def build() -> tuple[bytes, dict[str, Any]]:
        (library, facts), refused = made_by(choice, functools.partial(_compiler(target), problem, target, schedule))
        # kept in place of what was chosen, so that nobody tries again
        return library, {**facts, "set_aside": refused} if refused else facts

    check_host(target)
    entry = KernelCache().load_or_build(describe(problem, target, schedule, choice), build)
    _check_runs_here(target, entry.facts)
    if entry.facts.get("set_aside"):
        warn_set_aside(problem, entry.facts["set_aside"])
    if target.arch is None:
        return load_function(entry.library, problem), entry.facts
    launches = [Launch.from_dict(launch) for launch in entry.facts["launches"]]
    return CudaFunction(entry.library, launches, target.arch), entry.facts


def _compiler(target: Target) -> Callable[..., tuple[bytes, dict[str, Any]]]:
    """What compiles a problem for a target. Importing it imports TVM's compiler: seconds."""
    if target.kind == "cuda":
        from tvmconvgrad.compiling.cuda.compiler import compile_problem as for_gpu

        return for_gpu
    from tvmconvgrad.compiling.compiler import compile_problem

    return compile_problem


def _check_runs_here(target: Target, facts: dict[str, Any]) -> None:
    missing = sorted(set(facts["requires"]) - host_features())
    if missing:
        raise ValueError(f"target: code for {str(target)!r} needs {', '.join(missing)}, which this CPU does not have")


@functools.cache
def _sources_digest() -> str:
    root = Path(__file__).parent
    files = (root / source for source in _SOURCES)
    paths = [path for file in files for path in (file.rglob("*.py") if file.is_dir() else [file])]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
