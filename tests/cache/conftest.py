"""What the tests of the cache share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvmconvgrad.cache.store import KernelCache


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    """An empty cache in a folder that does not exist yet."""
    return KernelCache(tmp_path / "cache")
