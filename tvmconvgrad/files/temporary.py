"""Places for files that tools exchange, and the words where there is no room for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmconvgrad.common.warnings import cause

WORKERS = "tvmconvgrad-worker-"
"""How the folders of worker processes begin (workers/folder.py)."""
_ROOM = 4 << 20  # bytes: more than the files of any kernel


class TemporaryFolderError(OSError):
    """The system's temporary folder cannot be used: the text names it, and why."""

    def __init__(self, folder: str | Path, why: str) -> None:
        super().__init__(f"temporary folder {folder}: {why}; name another one in TMPDIR")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder of this user alone below $TMPDIR, or where else the system puts such; gone after the block.

    What fails in the block because there is no room left in the folder, or because it vanished, is a
    TemporaryFolderError, whatever the tool says that met it.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="tvmconvgrad-", ignore_cleanup_errors=True)
    except OSError as reason:
        tried = os.environ.get("TMPDIR") or tempfile.tempdir or "/tmp"
        raise TemporaryFolderError(tried, cause(reason)) from None
    with made as name:
        folder = Path(name)
        try:
            yield folder
        except TemporaryFolderError:
            raise
        except Exception as error:
            why = _trouble(folder)
            if why is not None:
                raise TemporaryFolderError(_place(folder), why) from error
            raise


def memory_file() -> int | None:
    """A new file in memory; None where the system gives none."""
    try:
        return os.memfd_create("tvmconvgrad-kernel", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None


def check_room(folder: Path) -> None:
    """TemporaryFolderError unless a kernel's files can be written to a temporary folder."""
    why = _trouble(folder)
    if why is not None:
        raise TemporaryFolderError(_place(folder), why)


def _place(folder: Path) -> Path:
    """Where the user has put a temporary folder, which may lie in a worker's."""
    return folder.parent.parent if folder.parent.name.startswith(WORKERS) else folder.parent


def _trouble(folder: Path) -> str | None:
    """Why no file of a kernel's size can be written to a folder."""
    path = folder / "room"
    try:
        path.write_bytes(bytes(_ROOM))
    except OSError as reason:
        return cause(reason)
    finally:
        path.unlink(missing_ok=True)
    return None
