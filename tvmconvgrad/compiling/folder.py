"""The folder that built kernels are kept in: where it is, who may write to it, how files enter and leave it.

What lies there is executed, so a folder that another user could have written to is refused, not repaired:
nobody can tell any more what in it is whose.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tvmconvgrad import process

VARIABLE = "TVMCONVGRAD_CACHE_DIR"
TEMPORARY = "tmp-"
STALE_SECONDS = 3600.0  # a file is written in milliseconds: whoever began it an hour ago is dead
QUARANTINE = "quarantine"
QUARANTINE_FILES = 16


class CacheFolderError(PermissionError):
    """The cache folder could hold what another user wrote, or is no folder."""


def default_folder() -> Path:
    """$TVMCONVGRAD_CACHE_DIR when set and not empty, else the user's cache folder (XDG)."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    with process.lock:
        import platformdirs  # only for the cache: bundled kernels go without it

    return platformdirs.user_cache_path("tvmconvgrad", appauthor=False)


def make_folder(folder: Path) -> None:
    """Create `folder` for this user alone where it is missing; CacheFolderError when what is there is unsafe.

    Other OSErrors mean that it cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        _refuse(folder, "is not a folder")
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """CacheFolderError unless only this user can write to `folder`; FileNotFoundError when it is missing.

    A symbolic link is judged by the folder that it leads to.
    """
    status = os.stat(folder)
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if not stat.S_ISDIR(status.st_mode):
        _refuse(folder, "is not a folder")
    if status.st_uid != os.geteuid():
        _refuse(folder, f"(mode {mode}) belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _refuse(folder, f"(mode {mode}) can be written to by other users")


def _refuse(folder: Path, why: str) -> NoReturn:
    raise CacheFolderError(
        f"cache folder {folder} {why}, and what it holds is executed: "
        f"remove it, or name a folder of your own (mode 0700) in {VARIABLE}"
    )


def publish(path: Path, data: bytes) -> None:
    """Make `data` the content of `path` in one step: a reader sees the old file or the whole new one."""
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def remove_stale(folder: Path) -> None:
    """Remove what killed writers left in `folder`."""
    oldest = time.time() - STALE_SECONDS
    for path in folder.glob(TEMPORARY + "*"):
        with suppress(OSError):
            if path.lstat().st_mtime < oldest:
                path.unlink()


def set_aside(path: Path, seen: os.stat_result) -> None:
    """Move the file that was `seen` at `path` to the quarantine, where the newest few are kept for a look.

    Never raises: another process may have moved or replaced it already, and a file that cannot be moved will
    be overwritten by the next store.
    """
    quarantine = path.parent / QUARANTINE
    with suppress(OSError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino):
            return
        if not quarantine.is_dir() or quarantine.is_symlink():
            remove(quarantine)
        quarantine.mkdir(mode=0o700, exist_ok=True)
        path.rename(quarantine / f"{time.time_ns()}-{path.name}")
        for old in sorted(quarantine.iterdir())[:-QUARANTINE_FILES]:
            remove(old)


def remove(path: Path) -> bool:
    """Remove a file, a link or a whole folder; whether it was there."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    return True
