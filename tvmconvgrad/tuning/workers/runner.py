"""MetaSchedule's builder and runner, with our workers behind them. Importing this imports TVM."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.workers.candidates import construction
from tvmconvgrad.tuning.workers.measure import MANY_TIMES_SLOWER, Measurer, ServersGone
from tvmconvgrad.tuning.workers.pool import Pool, TrialFailed

BUILD_SECONDS = 60.0
"""How long a candidate may take at most to be built."""


@derived_object
class Builder(PyBuilder):  # type: ignore[misc]
    """Builds a task's candidates in a pool of workers, into files of a folder."""

    def __init__(self, task: Task, folder: Path, pool: Pool) -> None:
        super().__init__()
        self._task, self._folder, self._pool = task, folder, pool
        self._count = itertools.count()

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's results: paths of libraries, or what went wrong."""
        return self._pool.map(self._built, [each.mod for each in build_inputs])

    def _built(self, module: tvm.IRModule) -> Any:
        library = self._folder / f"{next(self._count)}.so"
        try:
            self._pool.ask(construction(self._task, module, library), BUILD_SECONDS)
        except TrialFailed as reason:
            return BuilderResult(None, str(reason))
        return BuilderResult(str(library), None)


@derived_object
class _Future(PyRunnerFuture):  # type: ignore[misc]
    """A measurement that takes place when it is asked for, unless it is under way elsewhere."""

    def __init__(self, measure: Callable[[], Any]) -> None:
        super().__init__()
        self._measure = measure

    def done(self) -> bool:
        """Always: it is under way only within `result`."""
        return True

    def result(self) -> Any:
        """MetaSchedule's result."""
        return self._measure()


@derived_object
class Runner(PyRunner):  # type: ignore[misc]
    """Measures libraries one after the other, those that are slow but shortly."""

    def __init__(self, measurer: Measurer) -> None:
        super().__init__()
        self._measurer = measurer
        self._threads = ThreadPoolExecutor(measurer.parallel) if measurer.parallel > 1 else None
        self.best = float("inf")
        self.gone: ServersGone | None = None
        """Why nothing can be measured any more. Raised in here it would come out as another error, by way of C++."""

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Futures of MetaSchedule's results. On this machine nothing else runs while one of them is asked for."""
        works = [functools.partial(self._measured, str(each.artifact_path)) for each in runner_inputs]
        if self._threads is None:
            return [_Future(work) for work in works]
        return [_Future(self._threads.submit(work).result) for work in works]

    def _measured(self, library: str) -> Any:
        try:
            seconds = self._measurer.measure(library, MANY_TIMES_SLOWER * self.best)
        except TrialFailed as reason:
            return RunnerResult(None, str(reason))
        except ServersGone as reason:
            self.gone = reason
            return RunnerResult(None, str(reason))
        finally:
            Path(library).unlink()
        self.best = min(self.best, sorted(seconds)[len(seconds) // 2])
        return RunnerResult(seconds, None)
