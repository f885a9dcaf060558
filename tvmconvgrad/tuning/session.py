"""A tuning session: one task after the other, each result written to the log as soon as it is known."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from tvmconvgrad.records import logs, lookup
from tvmconvgrad.records.choice import DEFAULT_SPACE, SPACES, VERSION
from tvmconvgrad.records.entry import Entry, key
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.search.default_space import DefaultSpace
from tvmconvgrad.tuning.search.final import FINAL_SECONDS
from tvmconvgrad.tuning.search.metaschedule import logging_to
from tvmconvgrad.tuning.search.search import Found, Limits, Search, SearchFailed
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.search.trials import TaskBusy
from tvmconvgrad.tuning.workers.measure import Measurer, ServersGone
from tvmconvgrad.tuning.workers.pool import Pool, TrialFailed
from tvmconvgrad.workers.environment import tvm_version

TRIALS = "trials"
SEARCH_LOG = "search.log"
_MOST_BUILDERS = 16
_LEAST_SHARE = 20.0  # seconds: less is no search


@dataclass(frozen=True)
class Budget:
    """The limits of a session: trials for each task, and minutes for all."""

    trials: int = 64
    minutes: float | None = None
    begin: float = field(default_factory=time.monotonic)
    """When the minutes began: before the compiler was imported, since the user waits from then on."""

    @property
    def end(self) -> float:
        """On time.monotonic's clock."""
        return float("inf") if self.minutes is None else self.begin + 60 * self.minutes


class Display(Protocol):
    """Shows the progress of a session."""

    def begin(self, tasks: Sequence[Task]) -> AbstractContextManager[object]:
        """Called with all tasks; they are searched within the returned context."""

    def trial(self, found: Found) -> None:
        """A candidate was measured."""

    def done(self, task: Task, entry: Entry | None, why: str) -> None:
        """A task is over; without an entry, `why` says the reason."""


@dataclass
class Session:
    """Tunes tasks into a folder of logs."""

    tasks: Sequence[Task]
    folder: Path
    budget: Budget
    display: Display
    measurer: Measurer
    space: str = SPACES[0]
    """One of SPACES."""
    again: bool = False
    """Whether to search even where the log has a result of at least this number of trials."""
    entries: list[Entry] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    interrupted: bool = False
    left_out: int = 0
    """How many tasks no time was left for."""

    def run(self) -> None:
        """Search until all is done, time is up, or Ctrl-C is pressed: then what was measured is kept."""
        end = self.budget.end
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(logging_to(self.folder / SEARCH_LOG))
            stack.enter_context(self._interruptible())
            pool = stack.enter_context(Pool("tvmconvgrad.tuning.workers.build_worker", builders()))
            stack.callback(self.measurer.close)
            stack.enter_context(self.display.begin(self.tasks))
            for place, task in enumerate(self.tasks):
                left = end - time.monotonic()
                if self.interrupted or left < FINAL_SECONDS:
                    self.left_out = 0 if self.interrupted else len(self.tasks) - place
                    break
                share = max(left / (len(self.tasks) - place), _LEAST_SHARE)
                self._tune(task, time.monotonic() + min(share, left), pool)

    def _tune(self, task: Task, deadline: float, pool: Pool) -> None:
        known = None if self.again else self._known(task)
        if known is not None:
            self.entries.append(known)
            self.display.done(task, known, "was tuned before")
            return
        pool.until = deadline
        limits = Limits(self.budget.trials, deadline, lambda: self.interrupted)
        try:
            similar = lookup.similar(task.problem, task.target, self.folder)
            space = DefaultSpace(task) if self.space == DEFAULT_SPACE else Decisions(task, pool, known=similar)
            folder = logs.target_folder(self.folder, task.target) / TRIALS / f"{task.key}-{space.name}"
            with Search(space, folder, pool, self.measurer, self.display.trial) as search:
                self.found.append(search.found)
                found = search.run(limits)
        except (SearchFailed, TaskBusy, TrialFailed) as reason:
            self.display.done(task, None, str(reason))
            return
        except ServersGone as reason:
            self.display.done(task, None, f"{reason}; what was measured is kept")
            self.interrupted = True
            return
        if found.seconds:
            entry = make_entry(found)
            before = self._entry(task)
            if before is not None and self.space == DEFAULT_SPACE and before.gain >= entry.gain:
                self.entries.append(before)
                self.display.done(task, before, f"better than {entry.gain:.2f}, the best of {DEFAULT_SPACE}")
                return
            logs.append(self.folder, [entry])
            self.entries.append(entry)
            self.display.done(task, entry, found.why)

    def _known(self, task: Task) -> Entry | None:
        """The log's entry for a task, if its search made the asked-for number of trials, or had no more candidates."""
        entry = self._entry(task)
        if entry is None:
            return None
        return entry if entry.exhausted or entry.trials >= self.budget.trials else None

    def _entry(self, task: Task) -> Entry | None:
        """The log's entry for a task, if it is of this machine."""
        path = logs.target_folder(self.folder, task.target) / logs.FILE
        if not path.exists():
            return None
        wanted = key(task.problem, task.target, tvm_version(), VERSION)
        entry = logs.read(path, str(task.target)).entries.get(wanted)
        if entry is None or (entry.threads, entry.cpu) != (task.threads, task.machine):
            return None
        return entry

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the session at the next trial, a second one at once."""

        def note(_: int, __: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def make_entry(found: Found) -> Entry:
    """What goes to the log."""
    return Entry.of(
        found.task,
        tvm_version(),
        found.winner,
        trials=len(found.times),
        exhausted=found.exhausted,
        gain=found.gain,
        seconds=found.seconds,
    )


def builders() -> int:
    """How many candidates are built at the same time."""
    return min(len(os.sched_getaffinity(0)), _MOST_BUILDERS)
