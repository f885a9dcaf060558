"""Asking for a kernel without waiting for it: a Future."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future

from tvmconvgrad.cache.entry import Entry
from tvmconvgrad.compiler import service
from tvmconvgrad.kernels import Wanted, find_kernel
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers.pool import Job


class ForkedMeanwhile(RuntimeError):
    """A child was forked while its parent waited for a kernel, for which it has to ask anew."""


_awaited: weakref.WeakSet[Future[Kernel]] = weakref.WeakSet()


def in_background(
    problem: Problem, target: Target | None, schedule: str | None, tuned: bool, gpu: int | None = None
) -> Future[Kernel]:
    """What `get_kernel` returns, now or later. Raises at once what needs no compiler to be found."""
    found = find_kernel(problem, target, schedule, tuned, gpu)
    future: Future[Kernel] = Future()
    if isinstance(found, Kernel):
        future.set_result(found)
        return future
    order = found.order
    entry = service.find(order)
    if entry is not None:
        future.set_result(found.kernel(entry))
        return future

    def fill(job: Job[Entry]) -> None:
        if future.set_running_or_notify_cancel():
            _fill(future, found, job)

    _awaited.add(future)
    job = service.begin(order, fill)
    future.add_done_callback(lambda _: service.leave(job, fill) if future.cancelled() else None)
    return future


def _fill(future: Future[Kernel], wanted: Wanted, job: Job[Entry]) -> None:
    try:
        future.set_result(wanted.kernel(job.value()))
    except Exception as error:  # for whoever asks the future
        future.set_exception(error)


def _begin_as_child() -> None:
    """In a forked child: nobody is here who would fill what the parent waits for."""
    for future in list(_awaited):
        if not future.done():
            future.__init__()  # type: ignore[misc]  # a thread that is not here may have its lock
            future.set_exception(ForkedMeanwhile("this process was forked while the kernel was built: ask for it anew"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
