"""One kernel that the tests of the cache store, and what they put in place of files."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tvmconvgrad.cache.entry import Entry
from tvmconvgrad.cache.store import CacheWarning, KernelCache

DESCRIPTION = {"operator": "ConvolutionBackpropFilters", "strides": (1, 2), "target": "llvm -mcpu=znver3"}
LIBRARY = bytes(range(40))
FACTS = {"schedule": "packed 6x16", "workspace_bytes": 4096}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def stored(cache: KernelCache) -> Path:
    """Store the kernel anew; its file."""
    entry = cache.store(DESCRIPTION, LIBRARY, FACTS)
    return cache.folder / f"{entry.key}.kernel"


def load(cache: KernelCache) -> Entry:
    """The kernel, which must be there."""
    entry = cache.load(DESCRIPTION)
    assert entry is not None
    return entry


def build() -> tuple[bytes, dict[str, Any]]:
    """The kernel as it is built."""
    return LIBRARY, FACTS


def check_refused_and_rebuilt(cache: KernelCache, reason: str = "") -> None:
    """What lies there is not believed, and does not hinder a new build."""
    with pytest.warns(CacheWarning, match=reason):
        assert cache.load(DESCRIPTION) is None
    assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY
    assert load(cache).library == LIBRARY


def put_folder(path: Path) -> None:
    """A folder with something in it."""
    (path / "inside").mkdir(parents=True)


def put_link_to_itself(path: Path) -> None:
    """A symbolic link that leads nowhere."""
    path.symlink_to(path)


def put_socket(path: Path) -> None:
    """A socket without a server."""
    here = Path.cwd()
    os.chdir(path.parent)  # the system allows a socket only a short name
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name[:8])
        os.rename(path.name[:8], path)
    finally:
        os.chdir(here)
