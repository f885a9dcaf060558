"""A search's worker processes: what goes wrong in one costs a trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from tvmconvgrad.workers import pool, worker
from tvmconvgrad.workers.errors import WorkerFailed
from tvmconvgrad.workers.worker import Answer, Request

__all__ = ["Answer", "Pool", "Request", "TimeIsUp", "TrialFailed", "Worker"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class TrialFailed(RuntimeError):
    """A candidate could not be built or run, or its result is wrong: the text says how."""


class TimeIsUp(TrialFailed):
    """The pool takes no requests any more."""


class Worker(worker.Worker):
    """A worker whose failures are those of a trial."""

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer; TrialFailed where there is none in time, the process ends, or something is raised in it."""
        try:
            return super().ask(request, timeout)
        except WorkerFailed as reason:
            raise TrialFailed(str(reason)) from reason


class Pool(pool.Pool):
    """Several workers of one kind, each with one request at a time. Use it as a context: they start with that."""

    def __init__(self, module: str, size: int) -> None:
        super().__init__(lambda: Worker(module, sturdy=True), size=lambda: size, idle=lambda: None)
        self.size = size
        self._callers = ThreadPoolExecutor(size)
        self.until = float("inf")
        """When it takes no requests any more, on time.monotonic's clock."""

    @property
    def over(self) -> bool:
        """Whether it takes no requests any more."""
        return time.monotonic() >= self.until

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer of whoever is idle first. TimeIsUp after `until`, for what is not under way."""

        def work(one: worker.Worker) -> Answer:
            if self.over:
                raise TimeIsUp("time is up")
            return one.ask(request, timeout)

        return self.do(object(), work)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """What a function returns for each item, in order. One call at a time runs for each worker.

        The function must not call `map` itself.
        """
        return list(self._callers.map(function, items))

    def close(self, wait: float = 5.0) -> None:
        """End all."""
        super().close(wait)
        self._callers.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Pool:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
