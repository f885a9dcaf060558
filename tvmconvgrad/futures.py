"""Asking for a kernel without waiting for it: a Future."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future

from tvmconvgrad.cache.entry import Entry
from tvmconvgrad.compiler import service
from tvmconvgrad.kernels import Wanted, find_kernel
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime.cpus import usable_cpus
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.threads import get_num_threads
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers.pool import Job


class ForkedMeanwhile(RuntimeError):
    """A child was forked while its parent waited for a kernel, for which it has to ask anew."""


NICENESS, NICENESS_WITH_ALL_CPUS = 19, 10
"""Of what is built in the background. Calls on one of two cores lost 6 % of their speed at 19, 8 % at 15 and 11 % at
10, on a virtual machine with an Intel Xeon (benchmarks/compile_time.py background, with 60 kernels, by workers that
were there). A program that computes on all CPUs leaves a worker 1.4 % of one at 19 and 10 % at 10, by Linux's weights:
it would wait for minutes for what makes it faster."""

_awaited: weakref.WeakSet[Future[Kernel]] = weakref.WeakSet()


def in_background(
    problem: Problem,
    target: Target | None,
    schedule: str | None,
    tuned: bool,
    gpu: int | None = None,
    at_once: int | None = None,
) -> Future[Kernel]:
    """What `get_kernel` returns, now or later. Raises at once what needs no compiler to be found.

    With a number `at_once` the build begins while fewer of those with such a number run. Who asks for the same without
    a number takes it away.
    """
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
    job = service.begin(order, fill, _niceness(), at_once)
    future.add_done_callback(lambda _: service.leave(job, fill) if future.cancelled() else None)
    return future


def idle_cpus() -> int:
    """How many CPUs the program leaves idle while a call runs."""
    return max(0, usable_cpus() - get_num_threads())


def _niceness() -> int:
    """What is built takes the CPU that the program leaves idle, or, where it leaves none, a small share of all."""
    return NICENESS if idle_cpus() else NICENESS_WITH_ALL_CPUS


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
