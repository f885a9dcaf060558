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

from tvmconvgrad.common import process

_PAUSE = 0.02  # seconds between two attempts
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)


class Lock:
    """A file that is locked until `release`, or until the process ends that has locked it.

    A forked child lets go of what it inherits: else the lock would outlive a parent that is killed. Of one that is
    `shared` with children each of them goes on holding it.
    """

    def __init__(self, path: Path, shared: bool = False) -> None:
        with process.lock:  # no fork comes between the file and its being known
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not shared:
                _open.add(self)

    def is_of(self, path: Path) -> bool:
        """Whether this is the file that is at a path now. FileNotFoundError where there is none."""
        assert self._handle is not None
        return os.path.samestat(os.stat(path), os.fstat(self._handle))

    def try_once(self) -> bool:
        """Whether it is locked now: not where another process or thread has it."""
        assert self._handle is not None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            if reason.errno in _TAKEN:
                return False
            raise
        return True

    def release(self) -> None:
        """Unlock, also where a child is just being forked that has the file open, too."""
        if self._handle is not None:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            finally:
                self.close()

    def close(self) -> None:
        """Let go of the file, which another process may have locked."""
        with process.lock:
            handle, self._handle = self._handle, None
            _open.discard(self)
            if handle is not None:
                os.close(handle)


class _Held(threading.local):
    """What this thread has locked."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_open: set[Lock] = set()
_held = _Held()


@contextmanager
def locked(path: Path, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of a file that stays. What this thread holds already is not waited for.

    TimeoutError when the lock is still taken after `wait_seconds`, another OSError where there are no locks.
    """
    if path in _held.paths:
        yield
        return
    lock = acquire(path, wait_seconds)
    _held.paths.add(path)
    try:
        yield
    finally:
        _held.paths.discard(path)
        lock.release()


def acquire(path: Path, wait_seconds: float, shared: bool = False) -> Lock:
    """Lock a file until it is released. Raises what `locked` raises."""
    lock = Lock(path, shared)
    try:
        end = time.monotonic() + wait_seconds
        while not lock.try_once():
            if time.monotonic() >= end:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", os.fspath(path))
            time.sleep(_PAUSE)
    except BaseException:
        lock.close()
        raise
    return lock


def _begin_as_child() -> None:
    for lock in list(_open):
        lock.close()
    _held.paths.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
