"""What the logs have for a problem. It needs neither a compiler nor a search's packages, and reads a file once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from tvmconvgrad.cache.folder import UnknownFolder
from tvmconvgrad.common import process
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records import logs
from tvmconvgrad.records.choice import VERSION, Choice, made_by
from tvmconvgrad.records.entry import Entry, key
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.workers.environment import tvm_version

DEFAULT = "default"
T = TypeVar("T")


class Tuned(NamedTuple):
    """The choice to build a kernel by (None: the rules' own numbers), and whose log it is from, in words."""

    choice: Choice | None
    origin: str


_Stamp = tuple[int, int, int]
_read: dict[Path, tuple[_Stamp, dict[str, Entry]]] = {}
process.forgets(_read.clear)


def find(problem: Problem, target: Target) -> Tuned:
    """The tuned choice for a problem with as few axes as it allows; the user's logs go before the shipped ones.

    Whatever is wrong with a log costs a TuningWarning, once for each file.
    """
    for entry, owner in _found(problem, target, _user_folder()):
        return Tuned(entry.choice, f"{'tuned' if entry.choice else 'default, found to be the best'}: {owner}")
    return Tuned(None, DEFAULT)


def similar(problem: Problem, target: Target, folder: Path) -> list[Choice]:
    """What a folder of logs and the shipped ones have for a problem, and then for the same one in other types.

    Where the shapes are the same, what is fast in one type is likely to be so in another.
    """
    types = sorted(ITEM_BYTES, key=lambda dtype: dtype != problem.dtype)
    found = [entry for dtype in types for entry, _ in _found(replace(problem, dtype=dtype), target, folder)]
    return [entry.choice for entry in found if entry.choice is not None]


def make_tuned(problem: Problem, target: Target, make: Callable[[Choice | None], T]) -> tuple[T, str]:
    """`make` of the logs' choice, or of None if that is refused; and where the numbers come from, in words."""
    tuned = find(problem, target)
    made, refused = made_by(tuned.choice, make)
    if refused:
        logs.warn_set_aside(problem, refused)
    return made, DEFAULT if refused else tuned.origin


def _user_folder() -> Path | None:
    """Where the user's logs are, if there can be any."""
    try:
        return logs.user_folder()
    except UnknownFolder:
        return None


def _found(problem: Problem, target: Target, folder: Path | None) -> Iterator[tuple[Entry, str]]:
    """The entries of a problem, with whose log they are of: what the folder has goes before what was shipped."""
    wanted = None
    for logs_of, owner in ((folder, "the user's log"), (logs.SHIPPED, "the shipped log")):
        if logs_of is None:
            continue
        entries = _entries(logs.target_folder(logs_of, target) / logs.FILE, str(target))
        if not entries:
            continue
        wanted = wanted or key(problem, target, tvm_version(), VERSION)
        if wanted in entries:
            yield entries[wanted], owner


def _entries(path: Path, target: str) -> dict[str, Entry]:
    """The entries of a file, read anew when it has changed."""
    with process.lock:
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if path in _read and _read[path][0] == stamp:
                return _read[path][1]
            content = logs.read(path, target, whole=False)
        except FileNotFoundError:
            return {}
        except OSError as reason:
            stamp, content = (0, 0, 0), logs.Content({}, [f"it cannot be read: {reason}"])
            if path in _read:
                return {}
        _read[path] = stamp, content.entries
    if content.problems:
        logs.warn(path, content.problems)
    return content.entries
