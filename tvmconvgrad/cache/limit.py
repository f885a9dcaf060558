"""The limit of the cache's size: when it is exceeded, the least recently used kernels are removed.

A file's modification time is the time when its kernel was last built or found. A kernel that a living process has
loaded is not removed (uses.py). A process may be loading it right now: so a file is first set aside by a new name, then
the loaded kernels are looked up again, and the file gets its name back if it is among them. The other process notes the
kernel first, then looks whether the file still has its name, and stores it again if not (store.py).

A process does not count all files after each build: where there is room, it first fills an eighth of it. So few
processes, or many that count at different times, stay within the limit, and others may exceed it until the next count.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad.cache import folder as folders
from tvmconvgrad.cache import uses
from tvmconvgrad.common import process
from tvmconvgrad.files.locks import locked

VARIABLE = "TVMCONVGRAD_CACHE_MAXSIZE"
DEFAULT = 2 << 30
"""Bytes."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ASIDE = "going-"  # begins the name of a file that is set aside; no kernel's name begins so
_SHARE = 8  # of the room that is left, the part that a process fills before it counts again
_WAIT = 10.0  # seconds, for another process that removes files, which takes milliseconds

_free: dict[tuple[Path, int], int] = {}
"""Bytes that this process may store before it counts again, by the folder and the limit."""


class _File(NamedTuple):
    used: float
    path: Path
    size: int


def limit() -> int | None:
    """Bytes that the cache may hold; None if there is no limit. ValueError if the variable is not a size."""
    text = os.environ.get(VARIABLE, "").strip().lower()
    if not text:
        return DEFAULT
    if text == "none":
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([kmgt]?)(?:i?b)?|bytes?)", text)
    if found is None:
        raise ValueError(f"{VARIABLE}: got {text!r}, expected a size such as 500 MiB or 2 GiB, or none")
    return int(float(found[1]) * _UNITS[found[2] or ""]) or None


def enforce_limit(folder: Path, newest: str, suffix: str) -> int:
    """Remove the least recently used files until the rest fits the limit. Returns how many were removed.

    `newest` is the name of the file that was just stored, which stays. Only one process does this at a time; others
    wait. OSError where the file system has no locks, or a file cannot be removed.
    """
    most = limit()
    if most is None or _is_within(folder, most, newest, suffix):
        return 0
    with locked(folder / folders.LOCKS / "limit.lock", _WAIT):
        for left in folders.listed(folder, prefix=_ASIDE):  # by a process that was killed
            left.replace(folder / (left.name.removeprefix(_ASIDE) + suffix))
        return _remove_oldest(folder, most, newest, suffix)


@process.forgets
def forget() -> None:
    """Count anew, as if this process had stored nothing."""
    _free.clear()


def _is_within(folder: Path, most: int, newest: str, suffix: str) -> bool:
    """Whether no more than `most` bytes are stored, by this process' last count where that suffices."""
    place, size = (folder, most), (folder / newest).lstat().st_size
    with process.lock:
        _free[place] = _free.get(place, 0) - size
        if _free[place] > 0:
            return True
    stored = sum(file.size for file in _files(folder, suffix))
    with process.lock:
        _free[place] = (most - stored) // _SHARE
    return stored <= most


def _remove_oldest(folder: Path, most: int, newest: str, suffix: str) -> int:
    """Remove files until no more than `most` bytes are left, or all others are in use. Returns how many."""
    locks = folder / folders.LOCKS
    files = sorted(_files(folder, suffix))
    excess = sum(file.size for file in files) - most
    kept, removed = uses.keys(locks), 0
    for file in files:
        if excess <= 0:
            break
        if file.path.name != newest and file.path.name.removesuffix(suffix) not in kept:
            gone = _remove(file.path, locks, suffix)
            excess -= file.size * gone
            removed += gone
    return removed


def touch(path: Path) -> None:
    """Set the time of a kernel's last use to now. If the file system refuses, it stays as it was."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _remove(path: Path, locks: Path, suffix: str) -> bool:
    """Remove a file unless a process has just loaded it. Returns whether it was removed."""
    aside = path.with_name(_ASIDE + path.name.removesuffix(suffix))
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    if path.name.removesuffix(suffix) in uses.keys(locks):
        aside.rename(path)
        return False
    return folders.remove(aside)


def _files(folder: Path, suffix: str) -> list[_File]:
    """The files of all kernels and of the quarantine, whichever version of the package has stored them."""
    found = []
    for path in (*folders.listed(folder, suffix=suffix), *folders.listed(folder / folders.QUARANTINE)):
        with suppress(FileNotFoundError):
            status = path.lstat()
            found.append(_File(status.st_mtime, path, status.st_size))
    return found
