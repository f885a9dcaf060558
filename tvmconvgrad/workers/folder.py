"""A worker's folder for temporary files, which goes when the worker does, however that ends."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tvmconvgrad.common.warnings import cause
from tvmconvgrad.files import temporary
from tvmconvgrad.files.temporary import TemporaryFolderError

PREFIX = temporary.WORKERS
_STALE_SECONDS = 3600.0  # a worker takes its folder in less than that
_TRIES = 10  # others may be writing


def make() -> str:
    """A new one; TemporaryFolderError. Those whose worker and its parent were killed at once are removed."""
    with suppress(OSError):
        _remove_stale(tempfile.gettempdir())
    try:
        return tempfile.mkdtemp(prefix=PREFIX)
    except OSError as reason:
        tried = os.environ.get("TMPDIR") or tempfile.tempdir or "/tmp"
        raise TemporaryFolderError(tried, cause(reason)) from None


def is_elsewhere(folder: str) -> bool:
    """Whether a new one would not lie beside it: TMPDIR is another one by now."""
    try:
        return os.path.dirname(folder) != tempfile.gettempdir()
    except OSError:
        return True


def take(folder: str) -> int:
    """Show that it is in use until this process ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def remove(folder: str) -> None:
    """Remove it with all that is in it."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return


@functools.cache
def _remove_stale(where: str) -> None:
    """Once in a process."""
    oldest = time.time() - _STALE_SECONDS
    for path in Path(where).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < oldest and not _in_use(path):
                remove(str(path))


def _in_use(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
