"""The search of one task: batches of candidates are built, measured and kept, until the budget is spent."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import tvm
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.s_tir.meta_schedule.runner import RunnerInput, RunnerResult

from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.search.final import FINAL_SECONDS, FINALISTS, decide
from tvmconvgrad.tuning.search.space import Candidate
from tvmconvgrad.tuning.search.trials import Space, Trials
from tvmconvgrad.tuning.workers.measure import Measurer
from tvmconvgrad.tuning.workers.pool import Pool
from tvmconvgrad.tuning.workers.runner import Builder, Runner

BATCH = 16
"""Candidates that are chosen, built and measured together."""

_logger = logging.getLogger("tvmconvgrad.tuning")


class SearchFailed(RuntimeError):
    """The task's default could not be built or measured: nothing can be compared with it."""


@dataclass(frozen=True)
class Limits:
    """When a search ends: after a number of trials, earlier searches' included, at a time, or when somebody says so."""

    trials: int
    deadline: float = float("inf")
    """On time.monotonic's clock, the final included."""
    stopped: Callable[[], bool] = lambda: False

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()


@dataclass
class Found:
    """What a search knows: times of trials in order, None where one failed."""

    task: Task
    times: list[float | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Why candidates failed, of this search alone."""
    default_seconds: float = 0.0
    winner: Choice | None = None
    gain: float = 1.0
    """The default's time divided by the winner's, both run in turn."""
    seconds: float = 0.0
    """The seconds of a call of the winner, or of the default if nothing is better."""
    why: str = ""
    """Why nothing is better than the default, if so."""
    exhausted: bool = False
    """Whether the space has no candidate that was not measured."""

    @property
    def best(self) -> float | None:
        """The least time of a trial."""
        return min((each for each in self.times if each is not None), default=None)


class Search:
    """One task under way. Use it as a context; `report` is called after each trial."""

    def __init__(
        self,
        space: Space,
        folder: Path,
        pool: Pool,
        measurer: Measurer,
        report: Callable[[Found], None] = lambda _: None,
    ) -> None:
        task = space.task
        self._measurer, self._report, self._pool = measurer, report, pool
        self._end = float("inf")
        self._cores = pool.size
        self._space = space
        self._target = tvm.target.Target(task.target.to_dict())
        with ExitStack() as stack:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmconvgrad-tune-"))
            self._trials = stack.enter_context(closing(Trials(folder, space)))
            self._stack = stack.pop_all()
        self._builder = Builder(task, Path(temporary), pool)
        self._runner = Runner(measurer)
        self.found = Found(task, list(self._trials.times))

    def run(self, limits: Limits) -> Found:
        """Measure candidates until a limit is reached, then compare the best with the default. Raises SearchFailed."""
        begin = time.monotonic()
        default = self._build_default()
        # the finalists are built once more, some at a time; then they run
        final = FINAL_SECONDS + 2 * (time.monotonic() - begin)
        self._end = self._pool.until = limits.deadline - final
        self._runner.best = self.found.best or float("inf")
        left = max(limits.trials - len(self.found.times), 0)
        context = self._space.begin(self._target, self._cores, left, BATCH, self._trials.database)
        while not self._over(limits) and len(self.found.times) < limits.trials:
            candidates = context.generate_measure_candidates()
            if self._over(limits):
                break
            if not candidates:
                self.found.exhausted = True
                break
            measured, results = self._measure(list(candidates), limits)
            if results:
                self._space.learn(measured, results)
        context.post_tuning()
        self._pool.until = float("inf")
        if limits.stopped():
            return self.found
        if limits.left < 0:
            raise SearchFailed("time was up before anything could be compared with the default")
        self._decide(default, limits.left)
        return self.found

    def _over(self, limits: Limits) -> bool:
        """Whether only time for the final is left."""
        return limits.stopped() or time.monotonic() >= self._end

    def _build_default(self) -> str:
        (library,) = self._build([self._space.default().measured])
        if library.error_msg is not None:
            raise SearchFailed(f"{self.found.task.title}: the default cannot be built: {library.error_msg}")
        path = str(library.artifact_path)
        self._measurer.prepare(self.found.task, path)
        self._measurer.measure(path, float("inf"))  # that fails now or never, and not after all trials
        return path

    def _build(self, candidates: Sequence[Any]) -> list[Any]:
        return list(self._builder.build([BuilderInput(each.sch.mod, self._target) for each in candidates]))

    def _measure(self, candidates: Sequence[Any], limits: Limits) -> tuple[list[Any], list[Any]]:
        """Candidates with their results, as far as there is time. Some are built, then each of them runs alone."""
        some = 2 * max(self._cores, self._measurer.parallel)
        results: list[Any] = []
        for first in range(0, len(candidates), some):
            results += self._measure_some(candidates[first : first + some], limits)
            if len(results) < min(first + some, len(candidates)):
                break
        return list(candidates[: len(results)]), results

    def _measure_some(self, candidates: Sequence[Any], limits: Limits) -> list[Any]:
        """The results of these candidates, in their order, until the time is up."""
        results: list[Any] = []
        built = self._build(candidates)
        for candidate, result in zip(candidates, self._results(candidates, built)):
            if self._over(limits):
                break
            found = result()
            if self._runner.gone is not None:
                raise self._runner.gone
            results.append(found)
            seconds, why = found.run_secs, found.error_msg
            self._trials.append(candidate, [float(each) for each in seconds] if seconds else None)
            self.found.times.append(self._trials.times[-1])
            if why is not None:
                self.found.failures.append(f"{self._space.describe(candidate.sch)}: {why}")
                _logger.warning("%s: %s", self.found.task.title, self.found.failures[-1])
            self._report(self.found)
        return results

    def _results(self, candidates: Sequence[Any], built: Sequence[Any]) -> list[Callable[[], Any]]:
        """What each candidate's result is to be had by."""
        good = [(each, one) for each, one in zip(candidates, built) if one.error_msg is None]
        futures = iter(self._runner.run([RunnerInput(one.artifact_path, "cpu", each.args_info) for each, one in good]))
        return [
            next(futures).result if one.error_msg is None else partial(RunnerResult, None, str(one.error_msg))
            for one in built
        ]

    def _decide(self, default: str, seconds: float) -> None:
        """Run the best beside the default, in turn, and keep one that gains for certain."""
        finalists = self._finalists()
        built = self._build([each.measured for each in finalists])
        able = [(each, one.artifact_path) for each, one in zip(finalists, built) if one.error_msg is None]
        verdict = decide(self._measurer, default, [path for _, path in able], self.found.best, seconds)
        self.found.default_seconds, self.found.seconds, self.found.gain = verdict.default, verdict.seconds, verdict.gain
        self.found.why = verdict.why
        self.found.winner = None if verdict.winner is None else able[verdict.winner][0].choice

    def _finalists(self) -> list[Candidate]:
        """The best that were measured, but for the default."""
        plan = self._space.default().choice.plan
        return [each for each in self._trials.best(FINALISTS + 1) if each.choice.plan != plan][:FINALISTS]

    def __enter__(self) -> Search:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
