"""`tvmconvgrad.prepare`: many kernels at once, into the cache."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmconvgrad.cache.entry import Entry
from tvmconvgrad.compiler import service
from tvmconvgrad.compiler.service import Order
from tvmconvgrad.kernels import Wanted, find_kernel
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import show

if TYPE_CHECKING:
    from tvmconvgrad.layers import Layer, LayerGradient
    from tvmconvgrad.workers.pool import Job

Source = str | os.PathLike[str]
TargetLike = str | Mapping[str, Any] | Target | None
Progress = Callable[[str, int, int], None]


def prepare(
    wanted: Source | Layer | LayerGradient | Problem | Iterable[Source | Layer | LayerGradient | Problem],
    *,
    target: TargetLike | Sequence[TargetLike] = None,
    dtype: str | Sequence[str] | None = None,
    batch: int | None = None,
    data_format: str = "NXC",
    filter_format: str | None = None,
    only: str | None = None,
    substring: str = "",
    progress: bool | Progress = False,
) -> int:
    """Build many kernels into the cache, several at once. Returns how many were not there before.

    `wanted` is the name of a suite, a file of layers, a Layer, one of its gradients, a Problem (`op.problem(...)`), or
    several of them. For layers, both gradients are built, or `only` "filters", "data" or "forward" (by the data
    gradient that is the same sum). `substring` selects layers by their names; `dtype` (one or several) overrides their
    types, and `batch` their batch size. `target` is one or several; by default this machine's CPU. `progress` is True
    for a bar on a terminal, or a function that is called with (what was done, how many are done, how many there are).

    Raises ValueError or TypeError for wrong arguments before anything is built. If a kernel cannot be built, the others
    still are; then it raises what `compile` would raise for the first one that failed.
    """
    named: dict[str, Any] = {"batch": batch, "data_format": data_format, "filter_format": filter_format, "only": only}
    named |= {"dtypes": None if dtype is None else _listed(dtype), "substring": substring}
    problems = list(_problems(_listed(wanted), named))
    targets = [None if one is None else parse_target(one) for one in _listed(target)]
    found = [find_kernel(problem, one) for one in targets for problem in problems]
    orders = {order.key: order for order in (one.order for one in found if isinstance(one, Wanted))}
    if not callable(progress):
        from tvmconvgrad.common.progress import progress_bar

        with progress_bar(quiet=not progress) as bar:
            return _build_all(list(orders.values()), bar)
    return _build_all(list(orders.values()), progress)


def _build_all(orders: Sequence[Order], progress: Progress) -> int:
    missing = [order for order in orders if service.find(order) is None]
    done: queue.SimpleQueue[Job[Entry]] = queue.SimpleQueue()
    tell = done.put
    jobs: list[Job[Entry]] = []
    errors: list[BaseException] = []
    names: dict[int, str] = {}
    ready = len(orders) - len(missing)
    progress("", ready, len(orders))
    try:
        for order in missing:
            jobs.append(service.begin(order, tell))
            names[id(jobs[-1])] = str(order.problem)
        for count in range(len(missing)):
            job = done.get()
            errors += [] if job.error is None else [job.error]
            progress(names[id(job)], ready + count + 1, len(orders))
    finally:
        for job in jobs:
            service.leave(job, tell)
    if errors:
        raise errors[0]
    return len(missing)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike, Mapping)):
        return list(value)
    return [value]


def _problems(wanted: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Problem]:
    from tvmconvgrad.layers import Layer, LayerGradient, select_gradients

    if not wanted:
        raise ValueError("wanted: is empty, expected at least one")
    layers: list[Any] = []
    for one in wanted:
        if isinstance(one, Problem):
            yield one
        elif isinstance(one, LayerGradient):
            yield one.problem
        elif isinstance(one, (str, os.PathLike, Layer)):
            layers.append(os.fspath(one) if isinstance(one, os.PathLike) else one)
        else:
            expected = "expected a suite's name, a file of layers, a Layer, a LayerGradient or a Problem"
            raise TypeError(f"wanted: {show(one)} of type {type(one).__name__}, {expected}")
    if layers:
        yield from (gradient.problem for _, gradient in select_gradients(layers, **named))
