"""Which kernels of the cache are loaded by living processes: the cache's limit does not remove these (limit.py).

Each process that loads kernels lists their keys in a file of its own, and holds a lock on that file. The system
releases the lock when the process and all its forked children have ended, even by a crash. So a file without a lock
belongs to a dead process, and is removed. On a file system without locks nothing is listed, and the limit removes
nothing.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad.cache import folder as folders
from tvmconvgrad.common import process
from tvmconvgrad.files.locks import Lock, acquire

_PREFIX = "use-"
_WAIT = 1.0  # seconds; a process that removes dead files holds a lock for microseconds


class _File(NamedTuple):
    path: Path
    lock: Lock
    keys: set[str]


_files: dict[Path, _File] = {}
"""This process' file in each cache, by the folder of locks."""


@process.forgets
def forget() -> None:
    """Close this process' files, as if it had loaded no kernel."""
    with process.lock:
        for file in _files.values():
            with suppress(OSError):
                file.lock.close()  # does not unlock: forked processes that share the lock keep it
        _files.clear()


def note(locks: Path, key: str) -> bool:
    """List a kernel's key as loaded by this process, in the folder `locks`. Returns whether that was possible."""
    with process.lock:
        try:
            if locks in _files and not _files[locks].path.exists():  # the cache was removed
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
    """The keys of all kernels that living processes have loaded. OSError where there are no locks."""
    found: set[str] = set()
    for path in remove_dead(locks):
        with suppress(FileNotFoundError):
            found.update(path.read_text("ascii").split())
    return found


def remove_dead(locks: Path) -> list[Path]:
    """Remove the files of dead processes. Returns the files of living ones. OSError where there are no locks."""
    living = []
    for path in folders.listed(locks, prefix=_PREFIX):
        try:
            lock = acquire(path, 0)
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
    """Create and lock a file. Tries again if another process has removed it before it was locked."""
    while True:
        path = locks / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        lock = acquire(path, _WAIT, shared=True)
        with suppress(FileNotFoundError):
            if lock.is_of(path):
                return _File(path, lock, set())
        lock.release()


def _append(path: Path, key: str) -> None:
    # Not by the lock's descriptor: a program that becomes a daemon closes it, and its number may be another file's.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(file, key.encode("ascii") + b"\n")
    finally:
        os.close(file)
