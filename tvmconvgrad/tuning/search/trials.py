"""A task's measured candidates on disk, in the files of MetaSchedule's JSONDatabase. Importing this imports TVM.

MetaSchedule appends to its files without a lock, and cannot read a file that was cut off. So lines are written here,
one at a time and at once to the disk, and a line that cannot be read is skipped when a search continues. A candidate
that failed is a record without times, which MetaSchedule never takes for a result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.database import MemoryDatabase, TuningRecord, Workload

from tvmconvgrad.cache.folder import publish
from tvmconvgrad.common.warnings import cause, say
from tvmconvgrad.files.locks import Lock, acquire
from tvmconvgrad.files.regular_file import read_regular
from tvmconvgrad.records.logs import TuningWarning
from tvmconvgrad.records.task import Task
from tvmconvgrad.schedules import traces
from tvmconvgrad.tuning.search.space import Candidate

WORKLOADS, RECORDS, ABOUT = "database_workload.json", "database_tuning_record.json", "task.json"
DIGESTS = "digests.txt"
"""Digests of the lines that were written here. Only such lines are read: a value of an unexpected type in a record
makes TVM end the process."""
_MOST = 1 << 30
"""Bytes of a file of records."""


class Space(Protocol):
    """The space that a task's candidates are taken from."""

    name: str
    task: Task
    instructions: frozenset[str]
    """The instructions of traces that may be replayed."""

    def workload(self) -> tvm.IRModule:
        """The task's mathematics, not scheduled: what MetaSchedule calls the workload."""

    def default(self) -> Candidate:
        """What every candidate has to beat."""

    def begin(self, target: Any, cores: int, trials: int, batch: int, database: Any) -> Any:
        """A TuneContext that generates candidates, from what the database knows."""

    def learn(self, candidates: list[Any], results: list[Any]) -> None:
        """Tell the search what was measured."""

    def knows(self, record: Any) -> bool:
        """Whether a record is of this space."""

    def from_record(self, record: Any) -> Candidate | None:
        """The candidate of a record; None where it cannot be made any more."""

    def describe(self, sch: Schedule) -> str:
        """A candidate for people."""


class TaskBusy(RuntimeError):
    """Another process tunes the same task into the same folder."""


class Trials:
    """The database of one task in a folder of its own. Use `close` when the search is over."""

    def __init__(self, folder: Path, space: Space) -> None:
        task = space.task
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: Lock | None = None
        try:
            self._lock = acquire(folder / "lock", 0)
        except TimeoutError:
            raise TaskBusy(f"{task.title}: another process is tuning it into {folder}") from None
        except OSError as reason:
            say(f"trials in {folder} are written without a lock: {cause(reason)}", TuningWarning)
        try:
            self._open(folder, space)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path, space: Space) -> None:
        task, workload = space.task, space.workload()
        self._path, self._digests = folder / RECORDS, folder / DIGESTS
        self._space = space
        self._target = tvm.target.Target(task.target.to_dict())
        self.database = MemoryDatabase()
        self.times: list[float | None] = []
        """The median of each trial, in order; None where it failed."""
        self._workload = self.database.commit_workload(workload)
        _write(folder / WORKLOADS, json.dumps(Workload(workload).as_json()))
        about = {"problem": task.problem.to_dict(), "target": str(task.target), "threads": task.threads}
        _write(folder / ABOUT, json.dumps({**about, "machine": task.machine, "names": task.names}))
        self._load()

    def append(self, candidate: Any, seconds: Sequence[float] | None) -> None:
        """Keep what was measured of a candidate, or that it failed."""
        record = TuningRecord(candidate.sch.trace, self._workload, seconds, self._target, candidate.args_info)
        self._know(record)
        line = json.dumps([0, record.as_json()])
        for path, text in ((self._digests, _digest(line)), (self._path, line)):
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())

    def best(self, count: int) -> list[Candidate]:
        """The fastest, best first; those that cannot be made any more are left out."""
        found = (self._space.from_record(record) for record in self.database.get_top_k(self._workload, count))
        return [candidate for candidate in found if candidate is not None]

    def close(self) -> None:
        """Let other processes have the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _know(self, record: Any) -> None:
        self.database.commit_tuning_record(record)
        self.times.append(median(float(each) for each in record.run_secs) if record.run_secs else None)

    def _load(self) -> None:
        """Read the records of an earlier search; the file is written anew where it holds something else."""
        content = read_regular(self._path, _MOST) if self._path.exists() else b""
        text = content.decode("utf-8", errors="replace")
        self._written = set(read_regular(self._digests, _MOST).split()) if self._digests.exists() else set()
        lines = text.splitlines()
        kept = [line for line in lines if self._read(line)]
        if len(kept) < len(lines) or (text and not text.endswith("\n")):
            _write(self._path, "\n".join(kept))

    def _read(self, line: str) -> bool:
        if _digest(line).encode() not in self._written:
            return False
        try:
            index, content = json.loads(line)
            if index != 0:
                return False
            traces.check(content[0], self._space.instructions)
            record = TuningRecord.from_json(content, self._workload)
            if not self._space.knows(record):
                return False
        except Exception:  # TVM raises what it likes about a line that nobody knows who wrote
            return False
        self._know(record)
        return True


def _digest(line: str) -> str:
    return hashlib.sha256(line.encode(errors="replace")).hexdigest()


def _write(path: Path, text: str) -> None:
    publish(path, (text + "\n").encode() if text else b"")
