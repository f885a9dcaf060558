"""What the tests of folders run in a process of their own: builds with TMPDIR and the cache in folders of every kind.

`places_worker.py ROOT`: answers for each place whether the result was right, or what was raised, and the warnings.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from tests.compiler import kernel_worker
from tvmconvgrad.common import process
from tvmconvgrad.operators import compiled

NEW_MOUNTS, PRIVATE = 0x20000, 0x44000
ODD = os.fsdecode(b"a b'\"\n$(touch x);\\ \xff\xc3 %s {0}")


def may_mount() -> bool:
    """Whether this process can have mounts of its own, which end with it."""
    libc = ctypes.CDLL(None)
    return libc.unshare(NEW_MOUNTS) == 0 and libc.mount(b"none", b"/", None, PRIVATE, None) == 0


def mounted(folder: Path, options: str) -> Path:
    """A file system in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    return folder


def nearly_full(folder: Path, left: int) -> Path:
    """A file system with so many bytes left."""
    mounted(folder, "size=256k,mode=700")
    (folder / "filler").write_bytes(bytes((256 << 10) - left))
    return folder


def outcome(temporary: Path, cache: Path, height: int) -> dict[str, object]:
    """Build a kernel that nobody has, and call it."""
    os.environ["TMPDIR"], os.environ["TVMCONVGRAD_CACHE_DIR"] = str(temporary), str(cache)
    tempfile.tempdir = None
    compiled._kernel.cache_clear()
    process.forget()
    kernel_worker.OP._seen.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer: object = not kernel_worker.wrong(height)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    return {"answer": answer, "warnings": [f"{one.category.__name__}: {one.message}" for one in caught]}


def main(root: str) -> None:
    """Try all places."""
    here = Path(root)
    usual, cache = here / "usual", here / "cache"
    usual.mkdir()
    odd = here / ODD
    (odd / "temporary").mkdir(parents=True)
    places = {
        "odd names": (odd / "temporary", odd / "cache"),
        "missing": (here / "missing", cache),
        "long": (usual, here / "/".join(["x" * 200] * 40)),
    }
    if may_mount():
        places |= {
            "noexec": (mounted(here / "noexec", "noexec,mode=700"), here / "noexec/cache"),
            "full temporary folder": (nearly_full(here / "full", 24 << 10), cache),
            "full cache": (usual, nearly_full(here / "full-cache", 8 << 10)),
            "read-only temporary folder": (mounted(here / "ro", "ro,mode=700"), cache),
            "read-only cache": (usual, mounted(here / "ro-cache", "ro,mode=700")),
        }
    answers = {name: outcome(*folders, 4 + number) for number, (name, folders) in enumerate(places.items())}
    answers["odd names"]["kept"] = len(list((odd / "cache").glob("*.kernel")))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
