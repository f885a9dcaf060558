"""Locks between processes and threads: the system's own on a file, which end with the process that holds them.

Where a file system has none, the caller is told so at once, and goes on without. A file in place of a lock, as filelock
then makes one, is no help: after its owner's death it is waited for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE = 0.02  # seconds between two attempts
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)


class _Held(threading.local):
    """What this thread has locked."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_held = _Held()


@contextmanager
def locked(path: Path, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of a file that stays. What this thread holds already is not waited for.

    TimeoutError when it is not to be had within so many seconds, another OSError when there are no locks to be had.
    """
    if path in _held.paths:
        yield
        return
    handle = acquire(path, wait_seconds)
    _held.paths.add(path)
    try:
        yield
    finally:
        _held.paths.discard(path)
        release(handle)


def acquire(path: Path, wait_seconds: float) -> int:
    """Lock a file until `release` is called with the number that is returned. Raises what `locked` raises."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        end = time.monotonic() + wait_seconds
        while not _try(handle):
            if time.monotonic() >= end:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", os.fspath(path))
            time.sleep(_PAUSE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def release(handle: int) -> None:
    """Unlock, also where a child that was forked meanwhile has the file open."""
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        if reason.errno in _TAKEN:
            return False
        raise
    return True
