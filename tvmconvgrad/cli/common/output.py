"""Where a command writes its result: a file that appears when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tvmconvgrad.cli.common.errors import cannot_write
from tvmconvgrad.files.new_file import new_file


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write a result to, which appears when it is complete; an error in words where it cannot be written."""
    try:
        with new_file(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from error
