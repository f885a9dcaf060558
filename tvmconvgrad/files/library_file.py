"""A shared library as a file for the moment of loading it.

The system's loader maps files, not bytes. Loading a file of the cache would map something that any process of
this user may truncate while its code runs.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tvmconvgrad.files.temporary import TemporaryFolderError, memory_file, temporary_folder

_numbers = itertools.count()


@contextmanager
def library_file(library: bytes) -> Iterator[str]:
    """Path of a new file with the bytes of `library`, gone after the block; what was loaded stays mapped.

    It lies in memory, and where the system has no such files, or does not let them be executed, in a folder of this
    user alone below the system's temporary folder ($TMPDIR). OSError when it cannot be written there.
    """
    handle = memory_file()
    if handle is not None:
        try:
            if _filled(handle, library) and _can_be_mapped(f"/proc/self/fd/{handle}"):
                with _name(handle) as name:
                    yield name
                return
        finally:
            os.close(handle)
    with temporary_folder() as folder:
        path = folder / "kernel.so"
        path.write_bytes(library)
        if not _can_be_mapped(str(path)):
            raise TemporaryFolderError(folder.parent, "the system does not let code of files there run (noexec?)")
        yield str(path)


def _filled(handle: int, library: bytes) -> bool:
    rest = memoryview(library)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError:
        return False
    return True


def _can_be_mapped(path: str) -> bool:
    """Whether the loader can open a file and map it as code: /proc may be missing, the system may forbid it."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC):
            return True
    except OSError:
        return False


@contextmanager
def _name(handle: int) -> Iterator[str]:
    """A path of an open file, which is gone after the block.

    A library keeps the path that it was loaded by, and whatever prints a stack trace reads the file that is there then
    (libbacktrace in tvm_ffi, for example). By its number it would read another file, crash where that one is shorter,
    and wait for ever where it is a pipe. So the path is a link to the number; where there is no folder for it or links
    are not followed, the number.
    """
    link = _new_link()
    try:
        try:
            with suppress(OSError):
                os.symlink(f"/proc/self/fd/{handle}", link)
            yield link if _can_be_mapped(link) else _new_name(handle)
        finally:
            _remove(link)
    finally:  # once more: a signal may have interrupted that
        _remove(link)


def _new_link() -> str:
    """A path in the system's temporary folder where nothing is."""
    try:
        return os.path.join(tempfile.gettempdir(), f"tvmconvgrad-{secrets.token_hex(16)}.so")
    except OSError:  # there is none
        return ""


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _new_name(handle: int) -> str:
    """A path of an open file that no earlier call returned.

    The loader answers a path that it knows with the library that it has from there, and the system uses numbers of
    files again. So the path has the number of this call, too, in binary, with "/" for 0 and "/." for 1, which lead
    nowhere.
    """
    digits = format(next(_numbers), "b").replace("0", "/").replace("1", "/.")
    return f"/proc/self/fd{digits}/{handle}"
