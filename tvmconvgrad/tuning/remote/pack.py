"""Candidates on their way to a machine that has no compiler: a ZIP file of built kernels. Importing this imports none.

`pack.json` says what the tasks are, and by which choice each of their candidates is made; the candidate's library (for
a GPU, a file of the cache's format) is the member "TASK/CANDIDATE", both numbers. A task's first candidate is its
default. A pack is code: it is to be trusted as much as whoever made it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from tvmconvgrad.files.new_file import new_file
from tvmconvgrad.files.regular_file import open_regular
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.records.choice import VERSION, Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import show

CONTENTS = "pack.json"
FORMAT = 1
_MOST = 1 << 30
"""Bytes of a member: a damaged one may claim any number."""


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
        """The task of which `to_dict` made `data`. ValueError, KeyError, TypeError."""
        names, candidates = data["names"], data["candidates"]
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("names: expected a list of strings")
        if not (isinstance(candidates, list) and candidates):
            raise ValueError("candidates: expected a list, the default first")
        return cls(number, Problem.from_dict(data["problem"]), tuple(names), tuple(map(Choice.from_dict, candidates)))


class PackWriter:
    """A pack under way."""

    def __init__(self, archive: ZipFile) -> None:
        self.tasks: list[PackedTask] = []
        self._zip = archive

    @property
    def candidates(self) -> int:
        """How many it has."""
        return sum(len(task.candidates) for task in self.tasks)

    def add(self, task: Task, built: Iterable[tuple[Choice, Path]]) -> None:
        """A task with its candidates' libraries, the default's first."""
        number = len(self.tasks)
        choices: list[Choice] = []
        for choice, library in built:
            self._zip.write(library, _member(number, len(choices)))
            choices.append(choice)
        self.tasks.append(PackedTask(number, task.problem, task.names, tuple(choices)))


@contextmanager
def new_pack(path: Path, target: Target, tvm: str) -> Iterator[PackWriter]:
    """Write a pack for a target, which is at the path if the block succeeds. OSError where it cannot be written."""
    about = {"format": FORMAT, "version": VERSION, "tvm": tvm, "target": str(target)}
    with new_file(path) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        writer = PackWriter(archive)
        yield writer
        archive.writestr(CONTENTS, json.dumps({**about, "tasks": [task.to_dict() for task in writer.tasks]}))


class Pack:
    """A pack that is read. OSError, DamagedPack."""

    def __init__(self, path: Path) -> None:
        self._path = path
        os.close(open_regular(path))  # what is no file might be waited for
        content = self._content()
        try:
            format_, version = content["format"], content["version"]
            if (format_, version) != (FORMAT, VERSION):
                raise DamagedPack(
                    f"{path}: is of format {show(format_)} with version {show(version)} of the schedules, "
                    f"expected {FORMAT} and {VERSION}"
                )
            self.target: Target = parse_target(content["target"])
            self.tvm = str(content["tvm"])
            if not isinstance(content["tasks"], list):
                raise ValueError("tasks: expected a list")
            self.tasks = [PackedTask.from_dict(*each) for each in enumerate(content["tasks"])]
        except DamagedPack:
            raise
        except (ValueError, TypeError, KeyError) as reason:
            raise self._damaged(reason) from None

    def unpack(self, task: PackedTask, folder: Path) -> Iterator[Path]:
        """The libraries of a task's candidates, written into a folder, for this user alone. DamagedPack."""
        for number in range(len(task.candidates)):
            path = folder / str(number)
            content = self._read(_member(task.number, number))
            path.touch(mode=0o600)
            path.write_bytes(content)
            yield path

    def _content(self) -> Any:
        """What pack.json holds."""
        try:
            return json.loads(self._read(CONTENTS))
        except (ValueError, RecursionError) as reason:
            raise self._damaged(reason) from None

    def _read(self, member: str) -> bytes:
        try:
            with ZipFile(self._path) as file:
                size = file.getinfo(member).file_size
                if size > _MOST:
                    raise ValueError(f"{member} has {size} bytes")
                return file.read(member)
        except Exception as reason:  # zipfile and zlib raise what they like about a damaged file
            if isinstance(reason, OSError) and reason.errno:
                raise
            raise self._damaged(reason, member) from None

    def _damaged(self, reason: Exception, member: str = CONTENTS) -> DamagedPack:
        nothing = "is no pack of candidates, or " if member == CONTENTS else ""
        return DamagedPack(f"{self._path}: {nothing}is damaged ({str(reason)[:200]})")


def _member(task: int, candidate: int) -> str:
    return f"{task}/{candidate}"
