"""A file that appears at its path when it is complete: nobody finds half of one, whatever ends its writer."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to write bytes to, which takes the place of what is at `path` if the block succeeds.

    A link stays one, and what is no file (a device, a pipe) is written to as it is. An OSError names `path`.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with place.open("wb") as file:
            yield file
        return
    new = place.with_name(f".tvmconvgrad-{secrets.token_hex(8)}")
    try:
        with open_new(new) as file:
            yield file
        if place.exists():
            shutil.copymode(place, new)
        new.replace(place)
    except BaseException as error:
        with suppress(OSError):
            new.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(new)):
            error.filename = os.fspath(path)
            error.filename2 = None
        raise


def open_new(path: Path) -> BinaryIO:
    """Open a file that is not there yet."""
    return path.open("xb")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Make a text, in UTF-8, the content of `path` in one step. OSError."""
    with new_file(path) as file:
        file.write(text.encode())
