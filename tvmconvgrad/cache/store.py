"""The store of built kernels on disk, shared by all processes of a user.

Whatever happens to its files, a reader gets the bytes that were stored for its description or nothing: what
is damaged or foreign is set aside with a warning and built again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tvmconvgrad.cache import folder as folders
from tvmconvgrad.cache import uses
from tvmconvgrad.cache.entry import DamagedFile, Entry, LaterFormat, is_later, key_of, pack, read_entry
from tvmconvgrad.cache.folder import CacheFolderError
from tvmconvgrad.cache.limit import VARIABLE, enforce_limit, touch
from tvmconvgrad.common.verbose import log
from tvmconvgrad.common.warnings import cause, say
from tvmconvgrad.files.locks import locked
from tvmconvgrad.spec.values import counted

SUFFIX = ".kernel"
LOCKS = 64  # a fixed number of lock files: one for each key would pile up, since none can be removed safely


Build = Callable[[], tuple[bytes, Mapping[str, Any]]]
"""What makes a library, and the facts about it."""


class CacheWarning(UserWarning):
    """The cache on disk could not be used as it should; the kernel itself is right."""


@dataclass(frozen=True)
class Summary:
    """An entry with the lengths of its library and its file, in bytes, in place of the library.

    `used` is when it was last built or found, in seconds since the epoch.
    """

    key: str
    description: dict[str, Any]
    facts: dict[str, Any]
    library_bytes: int
    file_bytes: int
    used: float


class Cleared(NamedTuple):
    """What was removed: kernels, and the bytes of all files."""

    kernels: int
    bytes: int


class KernelCache:
    """Built kernels by description, in `folder` (None: `default_folder()`, looked up at each use).

    `wait_seconds` bounds the wait for another process that builds; after it the kernel is built here too.
    Every method raises CacheFolderError when another user could have written to the folder.
    """

    def __init__(self, folder: Path | None = None, *, wait_seconds: float = 600.0) -> None:
        self._folder = folder
        self._wait_seconds = wait_seconds

    @property
    def folder(self) -> Path:
        """Where the entries lie now."""
        return folders.default_folder() if self._folder is None else self._folder

    def load(self, description: Mapping[str, Any]) -> Entry | None:
        """The entry stored for an equal description, verified; None when none can be trusted."""
        return _find(self.folder, key_of(description))

    def keep_in_use(self, entry: Entry) -> None:
        """Let an entry that this process loads be found again as long as it lives, whatever else is stored."""
        folder = self.folder
        path = folder / (entry.key + SUFFIX)
        if uses.note(folder / folders.LOCKS, entry.key) and not path.exists():  # it was removed since it was read
            with suppress(OSError):
                _publish(folder, entry)

    def store(self, description: Mapping[str, Any], library: bytes, facts: Mapping[str, Any]) -> Entry:
        """Publish a built kernel in one step. OSError when it cannot be written."""
        entry = Entry.of(description, library, facts)
        _publish(self.folder, entry)
        return entry

    def load_or_build(self, description: Mapping[str, Any], build: Build) -> Entry:
        """The stored entry, else what `build` returns as (library, facts), stored.

        To be called where no signal's handler runs: by a thread that is not the main one.
        Of several processes one builds and the others wait for it. A disk that is full or read-only costs a
        CacheWarning; errors of `build` pass through.
        """
        folder, key = self.folder, key_of(description)
        entry = _find(folder, key)
        if entry is not None:
            return entry
        with ExitStack() as turn:
            self._wait_for_turn(turn, folder, key)
            entry = _find(folder, key)
            if entry is not None:
                return entry
            entry = Entry.of(description, *build())
            is_kept = _keep(folder, entry)
        if is_kept:
            _enforce_limit(folder, key)
        return entry

    def entries(self) -> list[Summary]:
        """What is stored, in the order of the keys; damaged entries are set aside."""
        folder = self.folder
        return [found for found in map(_summary, _paths(folder)) if found is not None]

    def size(self) -> int:
        """Bytes of all files in the folder, the quarantine's and unfinished ones included."""
        folder = self.folder
        if not _exists(folder):
            return 0
        return sum(_length(Path(where, name)) for where, _, names in os.walk(folder) for name in names)

    def clear(self, entries: Iterable[Summary] | None = None) -> Cleared:
        """Remove these entries; by default all, the quarantine and what killed writers left.

        Also such as are in use, which are then built again by whoever looks for them next.
        """
        folder = self.folder
        paths = _paths(folder) if entries is None else [folder / (entry.key + SUFFIX) for entry in entries]
        sizes = [(_length(path), folders.remove(path)) for path in paths]
        bytes_ = sum(size for size, was_there in sizes if was_there)
        if entries is None:
            bytes_ += sum(map(_length, folders.listed(folder / folders.QUARANTINE)))
            folders.remove(folder / folders.QUARANTINE)
            folders.remove_stale(folder)
        return Cleared(sum(was_there for _, was_there in sizes), bytes_)

    def _wait_for_turn(self, turn: ExitStack, folder: Path, key: str) -> None:
        # The lock only saves work: publishing is atomic, so whoever cannot have it goes on without.
        locks = folder / folders.LOCKS
        try:
            folders.make_folder(folder)
        except CacheFolderError:
            raise
        except OSError:
            return  # there is nothing to wait for; that nothing can be kept is said later
        try:
            locks.mkdir(mode=0o700, exist_ok=True)
            turn.enter_context(locked(locks / f"{int(key[:8], 16) % LOCKS:02d}.lock", self._wait_seconds))
        except FileNotFoundError:
            pass  # somebody removes the folder just now
        except OSError as reason:
            _warn(f"kernels are built without waiting for other processes, by locks in {locks}: {cause(reason)}")


def _find(folder: Path, key: str) -> Entry | None:
    entry = _read(folder, key)
    if entry is not None:
        touch(folder / (key + SUFFIX))
    return entry


def _summary(path: Path) -> Summary | None:
    entry = _read(path.parent, path.name.removesuffix(SUFFIX))
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if entry is None:
        return None
    sizes = len(entry.library), status.st_size
    return Summary(entry.key, entry.description, entry.facts, *sizes, status.st_mtime)


def _read(folder: Path, key: str) -> Entry | None:
    path = folder / (key + SUFFIX)
    if not _exists(folder):
        return None
    try:
        return _verified(path, key)
    except FileNotFoundError:
        pass
    except OSError as reason:
        _warn(f"kernel {path} cannot be read: {cause(reason)}")
    except LaterFormat:
        pass
    except DamagedFile as reason:
        _warn(f"kernel {path} is set aside and will be built again: {reason}")
    return None


def _verified(path: Path, key: str) -> Entry:
    seen = path.lstat()
    try:
        entry = read_entry(path)
        if entry.key != key:
            raise DamagedFile("it holds another kernel")
    except LaterFormat:
        raise
    except DamagedFile:
        folders.set_aside(path, seen)
        raise
    return entry


def _keep(folder: Path, entry: Entry) -> bool:
    """Whether it could be written."""
    try:
        _publish(folder, entry)
    except CacheFolderError:
        raise
    except OSError as reason:
        _warn(f"built kernels cannot be kept in {folder}: {cause(reason)}")
        return False
    return True


def _enforce_limit(folder: Path, key: str) -> None:
    try:
        removed = enforce_limit(folder, key + SUFFIX, SUFFIX)
        if removed:
            log.debug("removed %s from %s, which were used longest ago", counted(removed, "kernel"), folder)
    except FileNotFoundError:
        pass  # somebody removes the folder just now
    except OSError as reason:
        _warn(f"kernels in {folder} may be more than {VARIABLE} says: {cause(reason)}")


def _publish(folder: Path, entry: Entry) -> None:
    path = folder / (entry.key + SUFFIX)
    folders.make_folder(folder)
    folders.remove_stale(folder)
    if is_later(path):
        raise FileExistsError(errno.EEXIST, f"{path.name} is of a later version of tvmconvgrad, and stays")
    folders.publish(path, pack(entry), durable=False)


def _exists(folder: Path) -> bool:
    try:
        folders.check_folder(folder)
    except CacheFolderError:
        raise
    except OSError:  # missing, or out of reach
        return False
    return True


def _paths(folder: Path) -> list[Path]:
    return folders.listed(folder, suffix=SUFFIX) if _exists(folder) else []


def _length(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _warn(message: str) -> None:
    say(message, CacheWarning)
