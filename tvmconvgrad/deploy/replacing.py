"""A folder that takes another one's place when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmconvgrad.deploy.manifest import FILE


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` if the block succeeds."""
    folder = folder.absolute()
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield new
        new.chmod(0o777 & ~_umask())
        _swap(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    """Raise ValueError unless there is nothing at `folder`, or a bundle, or an empty folder."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder}: is there and is no folder, expected a new name or a bundle to replace")
    if any(folder.iterdir()) and not (folder / FILE).is_file():
        raise ValueError(f"{folder}: holds other things than a bundle, expected a new name or a bundle to replace")


def _swap(new: Path, folder: Path) -> None:
    """Rename; what was there is moved away first, for a moment, since a full folder cannot be replaced in one step."""
    if not folder.exists():
        new.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
