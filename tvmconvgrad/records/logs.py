"""Where logs lie, and how they are read and written. One folder a target, one line an entry; a later line wins.

Shipped logs are a folder of the package; the user's own lie on top of them. What cannot be used is ignored with one
warning a file: it never stops a program.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad.cache.folder import named_folder, publish
from tvmconvgrad.common.warnings import cause, say
from tvmconvgrad.files.locks import locked
from tvmconvgrad.files.regular_file import read_regular
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import DamagedEntry, Entry, parse
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import show
from tvmconvgrad.workers.environment import tvm_version

VARIABLE = "TVMCONVGRAD_TUNING_DIR"
FILE = "entries.jsonl"
_PACKAGE = Path(__file__).parents[1]
_INSTALLED = _PACKAGE / "tuning_logs"
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "tuning_logs"
"""In the package where it is installed, beside it in a checkout."""
_LONGEST_NAME = 100
_MOST = 1 << 28
"""Bytes of a file."""


class TuningWarning(UserWarning):
    """A log, or a part of one, is not used; the default schedule is, and results are right."""


def warn_set_aside(problem: Problem, why: str) -> None:
    """Say that an entry does not apply any more."""
    say(f"the tuning log's entry for {problem} is set aside, and the default schedule used: {why}", TuningWarning)


class Content(NamedTuple):
    """What a file holds: entries by key, and for each line that is not used, why."""

    entries: dict[str, Entry]
    problems: list[str]


def user_folder() -> Path:
    """$TVMCONVGRAD_TUNING_DIR when set and not empty, else a folder of the user's data (XDG). UnknownFolder."""
    folder = named_folder(VARIABLE, "user_data_path")
    return folder if os.environ.get(VARIABLE) else folder / "tuning"


def target_folder(folder: Path, target: Target | str) -> Path:
    """The folder of a target's logs."""
    name = str(target).replace(" ", "").replace(",", "_")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return folder / name


def files(folder: Path) -> list[Path]:
    """The logs in a folder, of all targets."""
    return sorted(folder.glob(f"*/{FILE}"))


def read(path: Path, target: str | None = None, whole: bool = True) -> Content:
    """The entries of a file that are of use here and, given a target, for it. OSError where it cannot be read.

    `whole` as in entry.parse.
    """
    found = Content({}, [])
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = parse(line, whole)
            _check_current(entry, target)
        except DamagedEntry as reason:
            found.problems.append(f"line {number}: {reason}")
        else:
            found.entries[entry.key] = entry
    return found


def append(folder: Path, entries: Iterable[Entry]) -> Path:
    """Write entries behind those that are there, to the disk; returns the last one's file. OSError."""
    path = folder
    for entry in entries:
        path = target_folder(folder, entry.target) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path), path.open("ab+") as file:
            file.seek(max(file.tell() - 1, 0))
            cut_off = file.read(1) not in (b"", b"\n")  # whoever wrote the last line was killed
            file.write((("\n" if cut_off else "") + entry.line()).encode())
            file.flush()
            os.fsync(file.fileno())
    return path


def rewrite(path: Path) -> int:
    """Keep the entries of a file that are of use, each once; how many lines that has removed. OSError."""
    with _locked(path):
        lines = sum(1 for _ in _lines(path))
        entries = read(path).entries
        publish(path, "".join(entry.line() for entry in entries.values()).encode())
    return lines - len(entries)


def warn(path: Path, problems: list[str]) -> None:
    """Say once what is not used."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    say(f"tuning log {path} is not used in full: {problems[0]}{more}", TuningWarning)


def _lines(path: Path) -> Iterator[str]:
    text = read_regular(path, _MOST).decode("utf-8", errors="replace")
    yield from (line for line in text.split("\n") if line.strip())


def _check_current(entry: Entry, target: str | None) -> None:
    """Raise DamagedEntry for what no look-up finds."""
    if target is not None and entry.target != target:
        raise DamagedEntry(f"it is for the target {show(entry.target)}, in a log for {target!r}")
    if entry.version != VERSION:
        raise DamagedEntry(f"it is for version {entry.version} of the schedules, which are of version {VERSION}")
    if entry.tvm != tvm_version():
        raise DamagedEntry(f"it is for TVM {show(entry.tvm)}, and {tvm_version()} is installed")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing a log. Where they cannot be kept, it is written all the same."""
    with ExitStack() as turn:
        try:
            turn.enter_context(locked(path.with_name("lock"), math.inf))
        except OSError as reason:
            say(f"tuning logs in {path.parent} are written without a lock: {cause(reason)}", TuningWarning)
        yield
