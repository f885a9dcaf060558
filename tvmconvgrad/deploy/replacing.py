"""A folder that takes another one's place when it is complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.bundles.manifest import FILE, parse_manifest

EDITABLE = ("example.c", "CMakeLists.txt")
"""The files of a bundle that belong to the user, who may change them."""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` if the block succeeds."""
    folder = folder.absolute()
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(folder)
    new.mkdir()
    try:
        yield new
        _swap(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    """Raise ValueError unless there is nothing at `folder`, or an empty folder, or a bundle without other files."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder}: is there and is no folder, expected a new name or a bundle to replace")
    there = {path.name for path in folder.iterdir()}
    if not there:
        return
    expected = "expected a new name or a bundle to replace"
    if FILE not in there:
        raise ValueError(f"{folder}: holds other things than a bundle, {expected}")
    try:
        of_bundle = {FILE, *EDITABLE, *parse_manifest((folder / FILE).read_bytes()).files}
    except BundleError as reason:
        raise ValueError(f"{folder}: {FILE} {reason}; remove the folder, or give a new name") from None
    for name in sorted(there - of_bundle):
        raise ValueError(f"{folder}: holds {name!r}, which is not of its bundle, {expected}")


def _swap(new: Path, folder: Path) -> None:
    """Rename; what was there is moved away first, for a moment, since a full folder cannot be replaced in one step."""
    if not folder.exists():
        new.rename(folder)
        return
    old = _beside(folder)
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> Path:
    """A new path in the same file system. What is made there has the usual rights, unlike tempfile's."""
    return folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
