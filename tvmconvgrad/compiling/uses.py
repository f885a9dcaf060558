"""Which kernels of the cache living processes have loaded, so that none of these goes for want of room.

Each process that loads kernels has a file of their keys, which it holds locked: the system lets go of the lock when
the process and all that were forked from it have ended, however they end. A file without a lock is a dead process' and
goes.
Where the file system has no locks, nothing is noted, and nothing goes for want of room either (limit.py).
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad import process
from tvmconvgrad.compiling import folder as folders
from tvmconvgrad.compiling import locking
from tvmconvgrad.compiling.locking import Lock

_PREFIX = "use-"
_WAIT = 1.0  # seconds; whoever takes a dead process' lock holds it for microseconds


class _File(NamedTuple):
    path: Path
    lock: Lock
    keys: set[str]


_files: dict[Path, _File] = {}
"""This process' file for each folder."""


@process.forgets
def forget() -> None:
    """As if this process had loaded no kernel."""
    with process.lock:
        for file in _files.values():
            with suppress(OSError):
                file.lock.close()  # not unlocked: others that were forked with it go on holding it
        _files.clear()


def note(locks: Path, key: str) -> bool:
    """Note that this process has loaded the kernel of a key; whether that could be noted. `locks` is a folder."""
    with process.lock:
        try:
            if locks in _files and not _files[locks].path.exists():  # the cache was removed since
                _files.pop(locks).lock.close()
            if locks not in _files:
                locks.mkdir(mode=0o700, exist_ok=True)
                remove_dead(locks)
                _files[locks] = _new_file(locks)
            if key not in _files[locks].keys:
                _append(_files[locks].path, key)
                _files[locks].keys.add(key)
        except OSError:
            return False
    return True


def keys(locks: Path) -> set[str]:
    """Those that living processes have loaded. OSError where that cannot be known."""
    found: set[str] = set()
    for path in remove_dead(locks):
        with suppress(FileNotFoundError):
            found.update(path.read_text("ascii").split())
    return found


def remove_dead(locks: Path) -> list[Path]:
    """Remove files of dead processes; those of living ones. OSError where there are no locks."""
    living = []
    for path in folders.listed(locks, prefix=_PREFIX):
        try:
            lock = locking.acquire(path, 0)
        except TimeoutError:
            living.append(path)
            continue
        try:
            with suppress(FileNotFoundError):
                path.unlink()
        finally:
            lock.release()
    return living


def _new_file(locks: Path) -> _File:
    """A file that is locked, and that nobody has taken for a dead process' before it was."""
    while True:
        path = locks / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        lock = locking.acquire(path, _WAIT, shared=True)
        with suppress(FileNotFoundError):
            if lock.is_of(path):
                return _File(path, lock, set())
        lock.release()


def _append(path: Path, key: str) -> None:
    # not by the handle: a program that becomes a daemon closes all, and its number is then another file's
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(file, key.encode("ascii") + b"\n")
    finally:
        os.close(file)
