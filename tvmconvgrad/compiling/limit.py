"""How much the cache may hold, and what goes when it is more: what was used longest ago.

A file's time of modification says when its kernel was last built or found. A kernel that a living process has loaded
does not go (uses.py), even if it was loaded while others were chosen: a file is first renamed, and comes back if it is
found noted then. Who notes a kernel looks afterwards whether its file is there, and else stores it anew (cache.py).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad.compiling import folder as folders
from tvmconvgrad.compiling import uses
from tvmconvgrad.compiling.locking import locked

VARIABLE = "TVMCONVGRAD_CACHE_MAXSIZE"
DEFAULT = 2 << 30
"""Bytes."""
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ASIDE = "going-"
_WAIT = 10.0  # seconds, for another process that removes files: it takes milliseconds


class _File(NamedTuple):
    used: float
    path: Path
    size: int


def limit() -> int | None:
    """Bytes that the cache may hold, None for any number. ValueError for a variable that is no size."""
    text = os.environ.get(VARIABLE, "").strip().lower()
    if not text:
        return DEFAULT
    if text == "none":
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([kmgt]?)(?:i?b)?|bytes?)", text)
    if found is None:
        raise ValueError(f"{VARIABLE}: got {text!r}, expected a size such as 500 MiB or 2 GiB, or none")
    return int(float(found[1]) * _UNITS[found[2] or ""]) or None


def heed_limit(folder: Path, newest: str, suffix: str) -> int:
    """Remove what was used longest ago until no more is left than may be; how many files went.

    `newest` is the name of a file that stays, which was just stored. Where another process does the same it is waited
    for. OSError where there are no locks, or a file cannot be removed.
    """
    most = limit()
    if most is None or sum(file.size for file in _files(folder, suffix)) <= most:
        return 0
    locks = folder / folders.LOCKS
    with locked(locks / "limit.lock", _WAIT):
        for left in folders.listed(folder, prefix=_ASIDE):  # by a process that was killed
            left.replace(folder / (left.name.removeprefix(_ASIDE) + suffix))
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
    """Note that a kernel was used just now; where that cannot be noted, it counts as used before."""
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _remove(path: Path, locks: Path, suffix: str) -> bool:
    aside = path.with_name(_ASIDE + path.name.removesuffix(suffix))  # no kernel's name
    try:
        path.rename(aside)
    except FileNotFoundError:
        return False
    if path.name.removesuffix(suffix) in uses.keys(locks):
        aside.rename(path)
        return False
    return folders.remove(aside)


def _files(folder: Path, suffix: str) -> list[_File]:
    """Kernels and what was set aside, of whatever version."""
    found = []
    for path in (*folders.listed(folder, suffix=suffix), *folders.listed(folder / folders.QUARANTINE)):
        with suppress(FileNotFoundError):
            status = path.lstat()
            found.append(_File(status.st_mtime, path, status.st_size))
    return found
