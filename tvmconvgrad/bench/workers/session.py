"""All variants' worker processes, asked in turn: of them only one runs at any time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tvmconvgrad.bench.job import Array, Job, Refused, Tensors
from tvmconvgrad.bench.variants import DEFINITION, Variant
from tvmconvgrad.bench.workers.child import Child, WorkerEnded, WorkerFailed

_SHORT, _LONG_ENOUGH, _MOST_LOOPS = 1e-3, 2e-3, 1000
_AWAKE_ANYWAY = 0.2  # seconds of a run beside which waking up is nothing
T = TypeVar("T")


class Ready(NamedTuple):
    """What a variant has prepared: its result, how long a run takes, and what is to know of it."""

    variant: Variant
    result: Array
    seconds: float
    facts: dict[str, Any]


class Prepared(NamedTuple):
    """By label: what those have prepared that take a job, and why the others do not."""

    ready: dict[str, Ready]
    refusals: dict[str, str]


class Session:
    """Worker processes on the same CPUs. Use it as a context: leaving it ends them."""

    def __init__(self, variants: Sequence[Variant], cpus: Sequence[int]) -> None:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmconvgrad-bench-")))
            children = [stack.enter_context(Child(variant, cpus)) for variant in variants]
            self._children = {child.variant.label: child for child in children}
            self._definition: Child | None = None
            self._stack = stack.pop_all()

    @property
    def versions(self) -> dict[str, str]:
        """What the workers run, by name."""
        return {name: version for child in self._children.values() for name, version in child.versions.items()}

    @property
    def variants(self) -> list[Variant]:
        """In order."""
        return [child.variant for child in self._children.values()]

    def prepare(self, job: Job, tensors: Tensors, wanted: Callable[[Variant], bool] = lambda _: True) -> Prepared:
        """Have the wanted variants prepare a job. WorkerFailed where that is beyond one of ours."""
        prepared = Prepared({}, {})
        files = self._write(job, tensors)
        for label, child in self._children.items():
            if wanted(child.variant):
                request, result = self._request(child.variant.job(job), files)
                answer = self._ask(child, request, prepared.refusals)
                if answer is not None:
                    found: Array = np.load(result)
                    prepared.ready[label] = Ready(child.variant, found, answer["seconds"], answer["facts"])
        return prepared

    def define(self, job: Job, tensors: Tensors) -> Array:
        """The exact sums, by the definition, in the canonical layout."""
        request, result = self._request(DEFINITION.job(job), self._write(job, tensors))
        if self._definition is None:
            self._definition = self._stack.enter_context(Child(DEFINITION, sorted(os.sched_getaffinity(0))))
        self._definition.ask(request)
        exact: Array = np.load(result)
        return exact

    def time(self, prepared: Prepared, rounds: int) -> dict[str, list[float]]:
        """Seconds of a run in each round, by label: in a round everyone runs in turn.

        Who fails now is left out, and found among the refusals.
        """
        times: dict[str, list[float]] = {label: [] for label in prepared.ready}
        for _ in range(rounds):
            for label in list(times):
                seconds = prepared.ready[label].seconds
                request = {"do": "time", "loops": loops(seconds), "wake": seconds < _AWAKE_ANYWAY}
                answer = self._ask(self._children[label], request, prepared.refusals)
                if answer is None:
                    del times[label]
                else:
                    times[label].append(answer["seconds"])
        return times

    def _write(self, job: Job, tensors: Tensors) -> dict[str, str]:
        """The files of a job's inputs, by role."""
        files = {role: str(self._folder / f"{role}.npy") for role in job.inputs}
        for role, path in files.items():
            np.save(path, tensors[role])
        return files

    def _request(self, job: Job, files: dict[str, str]) -> tuple[dict[str, Any], Path]:
        """What has a child prepare a job, and the file of its result."""
        result = self._folder / "result.npy"
        return {"do": "prepare", "job": asdict(job), "files": files, "result": str(result)}, result

    def _ask(self, child: Child, request: dict[str, Any], refusals: dict[str, str]) -> dict[str, Any] | None:
        """The answer; None, and the reason among the refusals, where there is none."""
        try:
            return child.ask(request)
        except (Refused, WorkerFailed) as reason:
            if child.variant.kind == "ours":
                raise
            refusals[child.variant.label] = str(reason)
            if isinstance(reason, WorkerEnded):
                child.restart()
            return None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def loops(seconds: float) -> int:
    """How many runs are timed together: short ones often enough for the clock."""
    return 1 if seconds >= _SHORT else min(_MOST_LOOPS, ceil(_LONG_ENOUGH / max(seconds, 1e-9)))


def in_turn(items: Sequence[T], rounds: int) -> Iterator[T]:
    """All of them in each round; who begins a round changes from one to the next."""
    for round_ in range(rounds):
        yield from items if round_ % 2 == 0 else reversed(items)
