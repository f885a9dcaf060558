"""Where candidates run: in a worker process of this machine. Importing this imports no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tvmconvgrad.machines.backends import BACKENDS
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.workers.pool import Worker

RUN_SECONDS = 30.0
FINAL_SECONDS = 600.0
"""How long a candidate may take at most: to be measured, and to be compared with the default."""

MANY_TIMES_SLOWER = 3.0
"""A candidate that takes this multiple of the best one's time is not measured any further."""


class ServersGone(RuntimeError):
    """Nothing is left to measure on."""


class Measurer(Protocol):
    """Where candidates run."""

    parallel: int
    """How many at the same time."""

    def prepare(self, task: Task, library: str) -> None:
        """Take up a task, with the path of the library that its candidates must agree with. TrialFailed."""

    def measure(self, library: str, limit: float) -> list[float]:
        """Seconds of several runs, or of a single one that exceeds the limit. TrialFailed."""

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        """Seconds of a run in each round, for each library; they run in turn. TrialFailed."""

    def close(self) -> None:
        """Give back what it holds."""


def prepare_request(task: Task, library: str) -> dict[str, Any]:
    """What a worker of tuning/workers/measure_worker.py takes up a task by."""
    return {"do": "prepare", "problem": task.problem.to_dict(), "threads": task.threads, "library": library}


class LocalMeasurer:
    """This machine, or its first GPU, which runs one candidate at a time."""

    parallel = 1

    def __init__(self, kind: str = "llvm") -> None:
        self._worker = Worker(BACKENDS[kind].measurer)

    def prepare(self, task: Task, library: str) -> None:
        """Candidates are compared with the result of this library from now on; it runs with the first of them."""
        self._worker.stop()
        self._worker.prepare = prepare_request(task, library)

    def measure(self, library: str, limit: float) -> list[float]:
        """In the worker, which a failure ends."""
        request = {"do": "measure", "library": library, "limit": limit}
        seconds: list[float] = self._worker.ask(request, RUN_SECONDS)["seconds"]
        return seconds

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        """In one process, on the same inputs."""
        request = {"do": "compare", "libraries": list(libraries), "rounds": rounds}
        seconds: list[list[float]] = self._worker.ask(request, FINAL_SECONDS)["seconds"]
        return seconds

    def close(self) -> None:
        """End the worker."""
        self._worker.close()
