"""How far a session is: bars on a terminal, a line for each layer elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from tvmconvgrad.records.entry import Entry
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec.values import counted
from tvmconvgrad.tuning.search.search import Found

_NAME = 36
_EVERY = 30.0  # seconds between two lines about the same layer


class Quiet:
    """Says nothing."""

    @contextmanager
    def begin(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Nothing."""
        yield

    def trial(self, found: Found) -> None:
        """Nothing."""

    def done(self, task: Task, entry: Entry | None, why: str) -> None:
        """Nothing."""


class Lines(Quiet):
    """A line for each layer, and one now and then while it takes long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()
        self._done = self._all = 0

    @contextmanager
    def begin(self, tasks: Sequence[Task]) -> Iterator[None]:
        """How many there are."""
        self._all = len(tasks)
        self._say(f"{counted(self._all, 'distinct problem')} to tune")
        yield

    def trial(self, found: Found) -> None:
        """How far this layer is, now and then."""
        if time.monotonic() - self._said > _EVERY:
            self._say(f"{found.task.title}: {counted(len(found.times), 'trial')}, {standing(found)}")

    def done(self, task: Task, entry: Entry | None, why: str) -> None:
        """What has become of it."""
        self._done += 1
        self._say(f"[{self._done}/{self._all}] {task.title}: {outcome(task, entry, why)}")

    def _say(self, words: str) -> None:
        self._said = time.monotonic()
        self._console.print(Text(words), soft_wrap=True)


class Bars(Quiet):
    """Two bars, of layers and of this layer's trials; what is done is a line above them.

    They are drawn between trials only: drawing takes time, too.
    """

    def __init__(self, console: Console, trials: int) -> None:
        shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*shown, console=console, auto_refresh=False, transient=True)
        self._console, self._trials = console, trials
        self._layers = self._layer = TaskID(0)

    @contextmanager
    def begin(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Draw the bars."""
        self._layers = self._progress.add_task("layers".ljust(_NAME), total=len(tasks))
        self._layer = self._progress.add_task("".ljust(_NAME), total=self._trials)
        with self._progress:
            self._progress.refresh()
            yield

    def trial(self, found: Found) -> None:
        """Move the layer's bar, and the other one by this layer's part."""
        part = min(len(found.times) / self._trials, 1.0)
        name = f"{found.task.title[:_NAME]:<{_NAME}} {standing(found)}"
        self._progress.update(self._layer, description=name, completed=len(found.times))
        layers = next(task for task in self._progress.tasks if task.id == self._layers)
        self._progress.update(self._layers, completed=int(layers.completed) + min(part, 0.99))
        self._progress.refresh()

    def done(self, task: Task, entry: Entry | None, why: str) -> None:
        """Write the line, and begin anew."""
        layers = next(task for task in self._progress.tasks if task.id == self._layers)
        self._progress.update(self._layers, completed=int(layers.completed) + 1)
        self._progress.reset(self._layer, total=self._trials)
        self._console.print(Text(f"{task.title}: {outcome(task, entry, why)}"), soft_wrap=True)
        self._progress.refresh()


def standing(found: Found) -> str:
    """The best speed so far. What is gained over the default is known when both have run in turn, at the end."""
    if found.best is None:
        return "nothing measured"
    failed = sum(each is None for each in found.times)
    return f"up to {gflops(found.task, found.best):.1f} GFLOP/s{f', {failed} failed' if failed else ''}"


def outcome(task: Task, entry: Entry | None, why: str) -> str:
    """What a task has ended with."""
    if entry is None:
        return f"not tuned: {why}"
    speed = f"{entry.seconds * 1e3:.3g} ms, {gflops(task, entry.seconds):.1f} GFLOP/s"
    gain = "the default is best" if entry.rule is None else f"{entry.gain:.2f} times as fast as the default"
    return f"{speed}, {gain}, {counted(entry.trials, 'trial')}{f'; {why}' if why else ''}"


def gflops(task: Task, seconds: float) -> float:
    """Speed of a call."""
    return task.problem.flops / seconds / 1e9
