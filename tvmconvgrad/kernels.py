"""The way from a problem to a kernel that can be called: from memory, from the cache on disk, or built now."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from tvmconvgrad.bundles import registry
from tvmconvgrad.cache.entry import Entry
from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.common.verbose import log
from tvmconvgrad.compiler import service
from tvmconvgrad.compiler.description import describe
from tvmconvgrad.compiler.service import Order
from tvmconvgrad.machines.host import missing_features
from tvmconvgrad.machines.targets import Target, check_host, own_architecture, parse_target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.records import lookup
from tvmconvgrad.records.logs import warn_set_aside
from tvmconvgrad.runtime import memory
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.memory import Loaded
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.epilogue import check_device
from tvmconvgrad.spec.reducing import needs_no_code, reduced


@dataclass(frozen=True)
class Wanted:
    """A kernel that is not a bundle's: it is in memory, in the cache, or to be built."""

    problem: Problem
    same: Problem
    """The same sum with as few axes as it allows (spec/reducing/): the kernel is built from it."""
    target: Target
    schedule: str | None
    tuned: lookup.Tuned

    @property
    def order(self) -> Order:
        """What the compile service is asked for. ValueError when the target's code cannot run here."""
        check_host(self.target)
        description = describe(self.same, self.target, self.schedule, self.tuned.choice)
        return Order(description, self.same, self.target, self.schedule, self.tuned.choice)

    def kernel(self, entry: Entry | None = None) -> Kernel:
        """The kernel, of the cache's entry where that is at hand; else waits until it is there."""
        key = (self.same.key, self.target, self.schedule, self.tuned.choice)
        loaded = memory.kernels.find(key)
        if loaded is None:  # who waits for a build has no turn: whoever has built it may need the same
            memory.bound()  # a nonsensical one is to be known before anything is built
            order = self.order
            loaded = memory.kernels.get(key, functools.partial(_load, order, entry or service.find_or_build(order)))
        else:
            log.debug("%s for %r: found in memory", self.problem, str(self.target))
        function, facts = loaded
        origin = lookup.DEFAULT if facts.get("set_aside") else self.tuned.origin
        kind = _kind(self.target)
        return kind(self.problem, self.target, facts["schedule"], facts["workspace_bytes"], function, origin)


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
    driver, MissingCompiler and CompilerFailed when no process can build it.
    """
    found = find_kernel(problem, target, schedule, tuned, gpu)
    return found if isinstance(found, Kernel) else found.kernel()


def find_kernel(
    problem: Problem,
    target: Target | None = None,
    schedule: str | None = None,
    tuned: bool = True,
    gpu: int | None = None,
) -> Kernel | Wanted:
    """A bundle's kernel, or what to ask for elsewhere. Raises as `get_kernel` does where nothing has to be built."""
    there = None if gpu is None or target is not None else driver.driver().architecture(gpu)
    check_device(problem.epilogue, (target or _default(there)).backend.is_gpu)
    if needs_no_code(problem):
        return _kind(target, there)(problem, target or _default(there), "zero()", 0, None)
    # Bundles have kernels for results anywhere, which serve new pages, too.
    bundled = registry.find(replace(problem, in_new_pages=False), target, schedule, there)
    if bundled is not None:
        log.debug("%s for %r: found in a bundle", problem, str(bundled.target))
        return bundled
    target = target or (_default(there) if there else None)
    registry.check_building(problem, target)
    target = target or parse_target()
    same = reduced(problem)
    found = lookup.find(same, target) if tuned and schedule is None else lookup.Tuned(None, lookup.DEFAULT)
    return Wanted(problem, same, target, schedule, found)


def _default(there: str | None) -> Target:
    return Target() if there is None else Target("cuda", arch=own_architecture(there))


def _kind(target: Target | None, there: str | None = None) -> type[Kernel]:
    """The class of a target's kernels."""
    found: type[Kernel] = (target or _default(there)).backend.get("kernel")
    return found


def _load(order: Order, entry: Entry) -> Loaded:
    _check_runs_here(order.target, entry.facts)
    if entry.facts.get("set_aside"):
        warn_set_aside(order.problem, entry.facts["set_aside"])
    KernelCache().keep_in_use(entry)
    return Loaded(memory.kernels.with_room(lambda: _function(entry, order.problem, order.target)), entry.facts)


def _function(entry: Entry, problem: Problem, target: Target) -> Any:
    return target.backend.get("load")(entry.library, entry.facts, problem, target)


def _check_runs_here(target: Target, facts: dict[str, Any]) -> None:
    missing = missing_features(facts["requires"])
    if missing:
        raise ValueError(f"target: code for {str(target)!r} needs {', '.join(missing)}, which this CPU does not have")
