"""Whether a program has failed for want of room on the disk, which is nothing that the program's advice mends."""

from __future__ import annotations

import os
import tempfile

_ENOUGH = 8 << 20  # bytes: more than a kernel takes on its way


def check_room(folder: str | os.PathLike[str]) -> None:
    """OSError, with the folder's name, where there is no room for a kernel's files."""
    handle, path = tempfile.mkstemp(dir=folder)
    try:
        with open(handle, "wb") as file:
            file.write(bytes(_ENOUGH))
    except OSError as reason:
        raise OSError(reason.errno, reason.strerror, os.fspath(folder)) from None
    finally:
        os.unlink(path)
