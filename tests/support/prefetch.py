"""Kernels built ahead, by several processes at once, into the store that the tests share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.support.case import Call

WORTH_STARTING = 12
"""With fewer kernels than this the workers cost more (each imports TVM) than they save."""


class Prefetcher:
    """Worker processes that start when they pay, and live until `close`."""

    def __init__(self) -> None:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._workers = cpus
        self._pool: ProcessPoolExecutor | None = None

    def prefetch(self, calls: Iterable[Call]) -> None:
        """Build the kernels of these calls in parallel; what fails is left to the test."""
        wanted = {str(call): call for call in calls}
        if self._workers < 2 or len(wanted) < (2 if self._pool else WORTH_STARTING):
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context)
        for _ in self._pool.map(_build, wanted.values(), chunksize=2):
            pass

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown()


def _build(call: Call) -> None:
    try:
        call.compile()
    except Exception:  # the test that needs the kernel fails by itself, and says why
        return
