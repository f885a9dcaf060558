"""Samples judged in child processes, which may crash or hang: then the sample is named and a new child goes on."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from tests.fuzz.sample import Sample

MOST_SAMPLES = 400
"""Of one child: what it has loaded it keeps."""
LIMIT = 60.0
"""Seconds in which a sample must be judged."""
LOOK = 1.0
"""Seconds after which the children are looked at."""
_CONTEXT = multiprocessing.get_context("spawn")

Task = Sample | tuple[int, int]
"""What to judge: a sample, or the one that a seed and a number draw."""


class Judged(NamedTuple):
    """A sample, what is wrong with it, and what it was drawn by."""

    task: Task
    sample: Sample | None
    verdict: str


class _Child:
    """A process that judges one task after the other."""

    def __init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.task: Task | None = None
        self._sample: Sample | None = None
        self._age, self._count = 0.0, 0

    def send(self, task: Task) -> None:
        self.task, self._sample = task, task if isinstance(task, Sample) else None
        self._age, self._count = 0.0, self._count + 1
        self.connection.send(task.to_json() if isinstance(task, Sample) else task)

    @property
    def is_spent(self) -> bool:
        return self._count >= MOST_SAMPLES

    def receive(self) -> Judged | None:
        """What is known of the task; None where that is not all."""
        assert self.task is not None
        try:
            kind, text = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return Judged(self.task, self._sample, f"crash: the process ends with {self._process.exitcode}")
        if kind == "sample":
            self._sample = Sample.from_json(text)
            self._age = 0.0
            return None
        return Judged(self.task, self._sample, text)

    def late(self, seconds: float) -> Judged | None:
        """The task, where it has taken too long, so many seconds more. A child's first one is also its start."""
        limit = LIMIT * (3 if self._count == 1 else 1)
        self._age += seconds
        if self.task is None or self._age < limit:
            return None
        return Judged(self.task, self._sample, f"hang: no result after {limit:.0f} seconds")

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


class Pool:
    """Several children; to be closed."""

    def __init__(self, jobs: int) -> None:
        self._children: list[_Child | None] = [None] * jobs

    def judge(self, tasks: Iterable[Task]) -> Iterator[Judged]:
        """The verdicts, in the order in which they are there. Tasks are asked for as children get free."""
        left = iter(tasks)
        busy = self._feed(left, range(len(self._children)))
        seen = time.monotonic()
        while busy:
            ready = set(wait([child.connection for child in busy.values()], timeout=LOOK))
            # Of more time than that all processes were stopped, or had no CPU: no sample has taken it.
            elapsed, seen = min(time.monotonic() - seen, 2 * LOOK), time.monotonic()
            for place, child in list(busy.items()):
                judged = child.receive() if child.connection in ready else child.late(elapsed)
                if judged is None:
                    continue
                del busy[place]
                child.task = None
                if child.is_spent or judged.verdict.startswith(("crash", "hang")):
                    child.end()
                    self._children[place] = None
                yield judged
                busy |= self._feed(left, [place])

    def _feed(self, tasks: Iterator[Task], places: Iterable[int]) -> dict[int, _Child]:
        fed = {}
        for place, task in zip(places, tasks):
            child = self._children[place] = self._children[place] or _Child()
            child.send(task)
            fed[place] = child
        return fed

    def close(self) -> None:
        """End the children."""
        for child in self._children:
            if child is not None:
                child.end()
        self._children = [None] * len(self._children)


def _serve(connection: Connection) -> None:
    """The child's side."""
    from tests.fuzz.drawing import calls, draw
    from tests.fuzz.judging import judge_calls

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what TVM prints of its errors
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            samples = [Sample.from_json(task)] if isinstance(task, str) else calls(draw(*task))
        except Exception as error:
            connection.send(("verdict", f"{type(error).__name__} where it is drawn: {error}"))
            continue
        verdict = judge_calls(samples, lambda sample: connection.send(("sample", sample.to_json())))
        connection.send(("verdict", verdict))
