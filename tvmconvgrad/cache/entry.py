"""One built kernel, and its file: a header, what it was built from, facts about it, and the shared library.

One file an entry, so that publishing it is one rename. The header's digest covers every other byte: a reader
needs to trust neither the disk nor whoever wrote the file last.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmconvgrad.files.regular_file import UnfitFile, open_regular

MAGIC = b"cgkern\x00\x01"
"""The last byte is the version of the format. All versions have this header, by which a later one's file is told from a
damaged one."""
HEADER = struct.Struct(">8s3Q32s")  # magic; lengths of description, facts, library; SHA-256 of all but itself
_MOST = 1 << 30
"""Bytes of a kernel; a file may claim any number, and have it, without a byte on the disk."""


class DamagedFile(Exception):
    """A file that is not, or no longer, what was published under its name."""


class LaterFormat(DamagedFile):
    """A file that a later version of this package wrote: it stays as it is."""


@dataclass(frozen=True)
class Entry:
    """One built kernel: `description` is all that its code depends on, `facts` what was found while building.

    `key` names it: 64 hexadecimal digits, the SHA-256 of the canonical description.
    """

    key: str
    description: dict[str, Any]
    library: bytes
    facts: dict[str, Any]

    @classmethod
    def of(cls, description: Mapping[str, Any], library: bytes, facts: Mapping[str, Any]) -> Entry:
        """An entry as it will be read back (a tuple is a list in JSON). TypeError or ValueError: not JSON."""
        key = key_of(description)
        return cls(key, json.loads(canonical(description)), library, json.loads(canonical(facts)))


def canonical(value: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys: equal bytes exactly when the values are equal as JSON.

    TypeError or ValueError when `value` holds what JSON has no word for.
    """
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def key_of(description: Mapping[str, Any]) -> str:
    """The name of the entry for `description`."""
    return hashlib.sha256(canonical(description)).hexdigest()


def pack(entry: Entry) -> bytes:
    """The bytes of the file that holds `entry`."""
    parts = (canonical(entry.description), canonical(entry.facts), entry.library)
    lengths = [len(part) for part in parts]
    payload = b"".join(parts)
    return HEADER.pack(MAGIC, *lengths, _digest(MAGIC, lengths, payload)) + payload


def read_entry(path: Path) -> Entry:
    """The verified content of `path`.

    DamagedFile when it is not a regular file that only this user can write, or when any byte differs from
    what was published; LaterFormat for a later version's. OSError when it cannot be read.
    """
    with open(_open(path), "rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC[:-1]) or header[: len(MAGIC)] < MAGIC:
            raise DamagedFile("it does not begin like a kernel of this version")
        magic, *lengths, digest = HEADER.unpack(header)
        # Before anything of that length is read: a damaged header may tell any number.
        if HEADER.size + sum(lengths) != os.fstat(file.fileno()).st_size:
            raise DamagedFile("its length is not the one in its header")
        if sum(lengths) > _MOST:
            raise DamagedFile(f"it has {sum(lengths)} bytes, more than any kernel")
        payload = file.read(sum(lengths))
    if len(payload) != sum(lengths) or _digest(magic, lengths, payload) != digest:
        raise DamagedFile("its content does not match its digest")
    if magic != MAGIC:
        raise LaterFormat("it is of a later version of tvmconvgrad")
    facts, library = lengths[0], lengths[0] + lengths[1]
    try:
        return Entry.of(json.loads(payload[:facts]), payload[library:], json.loads(payload[facts:library]))
    except (ValueError, TypeError, RecursionError) as reason:
        raise DamagedFile(f"its description or facts are not JSON objects: {reason}") from None


def is_later(path: Path) -> bool:
    """Whether a later version of this package has written a file."""
    try:
        read_entry(path)
    except LaterFormat:
        return True
    except (OSError, DamagedFile):
        pass
    return False


def _digest(magic: bytes, lengths: list[int], payload: bytes) -> bytes:
    return hashlib.sha256(struct.pack(">8s3Q", magic, *lengths) + payload).digest()


def _open(path: Path) -> int:
    try:
        handle = open_regular(path, follow=False)
    except UnfitFile:
        raise DamagedFile("it is not a regular file") from None
    try:
        _check_status(os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_status(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise DamagedFile(f"it belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise DamagedFile(f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})")
