"""The way from a problem to a kernel that can be called: from memory, from the cache on disk, or built now."""

from __future__ import annotations

import functools
import platform
from math import prod
from typing import Any

from tvmconvgrad import memory, process
from tvmconvgrad.choice import Choice, made_by
from tvmconvgrad.compiling import sources
from tvmconvgrad.compiling.cache import KernelCache
from tvmconvgrad.compiling.entry import Entry
from tvmconvgrad.compiling.separate import compile_by
from tvmconvgrad.deploy import registry
from tvmconvgrad.memory import Loaded
from tvmconvgrad.runtime.cuda import driver
from tvmconvgrad.runtime.cuda.function import CudaFunction
from tvmconvgrad.runtime.cuda.launches import Launch
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.native import Function, load_function
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.targets import Target, check_host, host_features, own_architecture, parse_target
from tvmconvgrad.tuning import lookup
from tvmconvgrad.tuning.logs import warn_set_aside

_COMPILERS = {"llvm": "tvmconvgrad.compiling.compiler", "cuda": "tvmconvgrad.compiling.cuda.compiler"}
"""The module whose `compile_problem` makes a kernel, by the target's kind."""


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
    same = reduced(problem)
    found = lookup.find(same, target) if tuned and schedule is None else lookup.Tuned(None, lookup.DEFAULT)
    wanted = (same, target, schedule, found.choice)
    function, facts = memory.kernels.get((same.key, *wanted[1:]), functools.partial(_load, *wanted))
    origin = lookup.DEFAULT if facts.get("set_aside") else found.origin
    return _kind(target)(problem, target, facts["schedule"], facts["workspace_bytes"], function, origin)


def _default(there: str | None) -> Target:
    return Target() if there is None else Target("cuda", arch=own_architecture(there))


def _kind(target: Target | None, there: str | None = None) -> type[Kernel]:
    """A CPU's kernel or a GPU's."""
    if (target or _default(there)).kind != "cuda":
        return Kernel
    with process.lock:
        from tvmconvgrad.runtime.cuda.kernel import CudaKernel
    return CudaKernel


def describe(
    problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None
) -> dict[str, Any]:
    """All that determines a kernel's code, as JSON's types: the cache's key."""
    return {
        "problem": problem.key,
        "target": str(target),
        "schedule": schedule,
        "choice": None if choice is None else choice.to_dict(),
        "sources": sources.digest(_COMPILERS[target.kind]),
        "apache-tvm": process.version("apache-tvm"),
        "apache-tvm-ffi": process.version("apache-tvm-ffi"),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _load(problem: Problem, target: Target, schedule: str | None, choice: Choice | None) -> Loaded:
    def build() -> tuple[bytes, dict[str, Any]]:
        compile_problem = functools.partial(compile_by, _COMPILERS[target.kind], problem, target, schedule)
        (library, facts), refused = made_by(choice, compile_problem)
        # kept in place of what was chosen, so that nobody tries again
        return library, {**facts, "set_aside": refused} if refused else facts

    check_host(target)
    entry = KernelCache().load_or_build(describe(problem, target, schedule, choice), build)
    _check_runs_here(target, entry.facts)
    if entry.facts.get("set_aside"):
        warn_set_aside(problem, entry.facts["set_aside"])
    return Loaded(memory.kernels.with_room(lambda: _function(entry, problem, target)), entry.facts)


def _function(entry: Entry, problem: Problem, target: Target) -> Function | CudaFunction:
    if target.arch is None:
        return load_function(entry.library, problem)
    return CudaFunction(entry.library, [Launch.from_dict(launch) for launch in entry.facts["launches"]], target.arch)


def _check_runs_here(target: Target, facts: dict[str, Any]) -> None:
    missing = sorted(set(facts["requires"]) - host_features())
    if missing:
        raise ValueError(f"target: code for {str(target)!r} needs {', '.join(missing)}, which this CPU does not have")
