"""Reading of a file, whatever lies at its path: a FIFO would be waited for, and a device never ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class UnfitFile(OSError):
    """What lies at a path is no regular file, or is larger than any file of its purpose: the text says which."""


def open_regular(path: Path, *, follow: bool = True) -> int:
    """A descriptor of a regular file, to read it; links are followed unless told not to. UnfitFile, other OSErrors."""
    # What is no regular file is not even opened: that may do something, or wait.
    _check(os.stat(path, follow_symlinks=follow))
    # It may have become something else since. O_NONBLOCK: opening a FIFO would wait for a writer for ever.
    no_links = 0 if follow else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | no_links)
    try:
        _check(os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file. UnfitFile if it has more than `most` bytes, other OSErrors."""
    with open(open_regular(path, follow=follow), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnfitFile(f"it has {size} bytes, expected at most {most}")
        return file.read(most)


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFile("it is no regular file")
