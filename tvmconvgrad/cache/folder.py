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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tvmconvgrad.common import process

VARIABLE = "TVMCONVGRAD_CACHE_DIR"
TEMPORARY = "tmp-"
STALE_SECONDS = 3600.0  # a file is written in milliseconds: whoever began it an hour ago is dead
QUARANTINE = "quarantine"
LOCKS = "locks"
QUARANTINE_FILES = 16
ATTEMPTS = 5


class CacheFolderError(PermissionError):
    """The cache folder could hold what another user wrote, is no folder, or cannot be known."""


class UnknownFolder(CacheFolderError):
    """A folder of the user's is needed that neither its variable nor a home folder tells."""


def default_folder() -> Path:
    """$TVMCONVGRAD_CACHE_DIR when set and not empty, else the user's cache folder (XDG). UnknownFolder."""
    return named_folder(VARIABLE, "user_cache_path")


def named_folder(variable: str, usual: str) -> Path:
    """The folder that a variable names, else the user's by a function of platformdirs. UnknownFolder."""
    chosen = os.environ.get(variable)
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        with process.lock:
            import platformdirs  # bundled kernels go without it

        path: Path = getattr(platformdirs, usual)("tvmconvgrad", appauthor=False)
    except (RuntimeError, OSError) as reason:  # no home folder; no current one
        raise UnknownFolder(_unknown(variable, chosen, str(reason))) from None
    if not path.is_absolute():
        raise UnknownFolder(_unknown(variable, chosen, f"{path} is relative"))
    return path


def _unknown(variable: str, chosen: str | None, why: str) -> str:
    if chosen:
        return f"{variable}: {chosen!r} names no folder ({why}): expected an absolute path"
    return f"{variable} is not set, and the user's own folder cannot be known ({why}): name a folder in {variable}"


def make_folder(folder: Path) -> None:
    """Create `folder` for this user alone where it is missing; CacheFolderError when what is there is unsafe.

    Other OSErrors mean that it cannot be created.
    """

    def make() -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder)

    try:
        _persistently(make)
    except FileExistsError:
        _refuse(folder, "is not a folder")


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


def publish(path: Path, data: bytes, durable: bool = True) -> None:
    """Make `data` the content of `path` in one step: a reader sees the old file or the whole new one.

    A system that then loses its power keeps one of the two, if the new one is `durable`. Otherwise it may leave any
    content: for what can be made again, and is found by a digest. To force a file onto the disk takes three times as
    long as all else here.

    Where the folder or the unfinished file vanishes meanwhile, it is written anew.
    """

    def write() -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _publish(path, data, durable)

    _persistently(write)


def _persistently(act: Callable[[], None]) -> None:
    """Act; and again where somebody removes the folder meanwhile."""
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError, FileExistsError):
            return act()
    return act()


def _publish(path: Path, data: bytes, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def listed(folder: Path, prefix: str = "", suffix: str = "") -> list[Path]:
    """What is in a folder under such names, in their order; nothing when it has vanished."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if name.startswith(prefix) and name.endswith(suffix)]


def remove_stale(folder: Path) -> None:
    """Remove what killed writers left in `folder`.

    Clocks jump: a file of the future may be as old as one of the past, and a writer whose file vanishes writes it anew.
    """
    now = time.time()
    for path in listed(folder, prefix=TEMPORARY):
        with suppress(OSError):
            if abs(now - path.lstat().st_mtime) > STALE_SECONDS:
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
