"""Candidates on their way to a machine that has no compiler: a ZIP file of built kernels. Importing this imports none.

`pack.json` says what the tasks are, and by which choice each of their candidates is made; the candidate's library (for
a GPU, a file of the cache's format) is the member "TASK/CANDIDATE", both numbers. A task's first candidate is its
default. A pack is code: it is to be trusted as much as whoever made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from tvmconvgrad.choice import VERSION, Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.targets import Target, parse_target
from tvmconvgrad.tuning.task import Task

CONTENTS = "pack.json"
FORMAT = 1


class DamagedPack(ValueError):
    """A file that is no pack, not a whole one, or one by other schedules than this package's; the text says which."""


@dataclass(frozen=True)
class PackedTask:
    """A problem of some layers, and by which choices it may be computed, the default first."""

    number: int
    problem: Problem
    names: tuple[str, ...]
    candidates: tuple[Choice, ...]

    def on(self, target: Target, threads: int, machine: str) -> Task:
        """The task on the machine that measures it."""
        return Task(self.problem, target, threads, machine, self.names)

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types."""
        candidates = [each.to_dict() for each in self.candidates]
        return {"problem": self.problem.to_dict(), "names": list(self.names), "candidates": candidates}

    @classmethod
    def from_dict(cls, number: int, data: dict[str, Any]) -> PackedTask:
        """The task of which `to_dict` made `data`."""
        candidates = tuple(
            Choice.of(each["rule"], each["decisions"], each["plan"], each["trace"]) for each in data["candidates"]
        )
        return cls(number, Problem.from_dict(data["problem"]), tuple(data["names"]), candidates)


class PackWriter:
    """A pack for a target under way, at a path; use it as a context. OSError where it cannot be written."""

    def __init__(self, path: Path, target: Target, tvm: str) -> None:
        self._about = {"format": FORMAT, "version": VERSION, "tvm": tvm, "target": str(target)}
        self._tasks: list[PackedTask] = []
        self._path = path
        self._zip = ZipFile(path, "w", ZIP_DEFLATED)

    @property
    def candidates(self) -> int:
        """How many it has."""
        return sum(len(task.candidates) for task in self._tasks)

    def add(self, task: Task, built: Iterable[tuple[Choice, Path]]) -> None:
        """A task with its candidates' libraries, the default's first."""
        number = len(self._tasks)
        choices: list[Choice] = []
        for choice, library in built:
            self._zip.write(library, _member(number, len(choices)))
            choices.append(choice)
        self._tasks.append(PackedTask(number, task.problem, task.names, tuple(choices)))

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            tasks = [task.to_dict() for task in self._tasks]
            self._zip.writestr(CONTENTS, json.dumps({**self._about, "tasks": tasks}))
        self._zip.close()
        if kind is not None:
            self._path.unlink()


class Pack:
    """A pack that is read. OSError, DamagedPack."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = ZipFile(path)
            content = json.loads(self._zip.read(CONTENTS))
            format_, version = content["format"], content["version"]
            if (format_, version) != (FORMAT, VERSION):
                raise DamagedPack(
                    f"{path}: is of format {format_} with version {version} of the schedules, "
                    f"expected {FORMAT} and {VERSION}"
                )
            self.target: Target = parse_target(content["target"])
            self.tvm = str(content["tvm"])
            self.tasks = [PackedTask.from_dict(*each) for each in enumerate(content["tasks"])]
        except DamagedPack:
            raise
        except (BadZipFile, ValueError, TypeError, KeyError) as reason:
            raise DamagedPack(f"{path}: is no pack of candidates, or is damaged ({reason})") from None

    def unpack(self, task: PackedTask, folder: Path) -> Iterator[Path]:
        """The libraries of a task's candidates, written into a folder, for this user alone. DamagedPack."""
        for number in range(len(task.candidates)):
            path = folder / str(number)
            try:
                content = self._zip.read(_member(task.number, number))
            except (BadZipFile, KeyError) as reason:
                raise DamagedPack(f"{self._zip.filename}: is damaged ({reason})") from None
            path.touch(mode=0o600)
            path.write_bytes(content)
            yield path


def _member(task: int, candidate: int) -> str:
    return f"{task}/{candidate}"
