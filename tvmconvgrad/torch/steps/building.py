"""A kernel that is built in the background, while PyTorch computes."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from tvmconvgrad.bundles.errors import MissingKernel
from tvmconvgrad.frontends.errors import first_line
from tvmconvgrad.futures import ForkedMeanwhile, idle_cpus, in_background
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.epilogue import PLAIN

QUIET_AFTER = 30.0
"""Seconds after which calls are timed although other kernels are still being built: some programs always build."""


class Build:
    """The build of one kernel: not asked for yet, pending, ready (`kernel`), or failed (`reason`)."""

    pending: ClassVar[set[Build]] = set()
    """Builds of this process that have not ended. Meanwhile compilers use the CPUs, and times of calls say little."""

    def __init__(self, problem: Problem, target: Target | None, gpu: int | None = None) -> None:
        self.problem, self.target, self.gpu = problem, target, gpu
        self.kernel: Kernel | None = None
        self.reason = ""
        """Why there will never be a kernel; "" while there may be one."""
        self._since = 0.0  # when the build ended, in time.monotonic()'s seconds
        self._future: Future[Kernel] | None = None

    def ask(self, waits: bool = False) -> None:
        """Start the build, unless it was started before.

        While nobody `waits`, one kernel is built at a time on each CPU that the program leaves idle. On two CPUs a
        second compiler that started made a step of a training on one thread 1.6 times as long (MobileNetV2 on an AMD
        EPYC with Zen 4). Where none is idle, all compilers share a small part of them.
        """
        if self.reason or (self._future is not None and not (waits and self in self.pending)):
            return
        try:
            future = self._begun(None if waits else idle_cpus() or None)
        except Exception as error:  # PyTorch computes after any error, and the report shows it
            self.reason = first_line(error)
            return
        if self._future is None:  # else the limit of the first build is gone
            self._future = future
            self.pending.add(self)
        self.poll()

    def _begun(self, at_once: int | None) -> Future[Kernel]:
        try:
            return in_background(self.problem, self.target, None, True, self.gpu, at_once)
        except MissingKernel:  # nothing may be built, but a bundle may have the kernel without options
            plain = replace(self.problem, epilogue=PLAIN)
            return in_background(plain, self.target, None, True, self.gpu, at_once)

    def poll(self) -> Kernel | None:
        """The kernel, if it is ready; None otherwise. Does not wait."""
        future = self._future
        if self.kernel is None and future is not None and future.done():
            self._take(future)
        return self.kernel

    def wait(self) -> Kernel | None:
        """Start the build, wait for its end, and return the kernel; None if it failed (`reason`)."""
        while self.poll() is None and not self.reason:
            self.ask(waits=True)
            future = self._future
            if future is not None:  # else another thread of a forked child is about to ask anew
                with suppress(Exception):  # poll() stores the error
                    future.result()
        return self.kernel

    @property
    def is_quiet(self) -> bool:
        """Whether calls can be timed: nothing is being built, or QUIET_AFTER seconds have passed since this build."""
        for other in list(self.pending):
            other.poll()
        return not self.pending or time.monotonic() - self._since > QUIET_AFTER

    def _take(self, future: Future[Kernel]) -> None:
        self._since = time.monotonic()
        self.pending.discard(self)
        error = future.exception()
        if error is None:
            self.kernel = future.result()
        elif isinstance(error, ForkedMeanwhile):
            self._future = None  # the next ask() starts the build again, in this child
        else:
            self.reason = first_line(error)
