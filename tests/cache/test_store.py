"""The store of built kernels: what it gives back, which folders it refuses, and disks that fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cache.cache_support import (
    DESCRIPTION,
    FACTS,
    LIBRARY,
    build,
    load,
    needs_root,
    put_link_to_itself,
    stored,
)
from tvmconvgrad.cache.folder import CacheFolderError
from tvmconvgrad.cache.store import CacheWarning, KernelCache

pytestmark = pytest.mark.filterwarnings("error")


def no_build() -> tuple[bytes, dict[str, Any]]:
    raise AssertionError("built although it is stored")


def test_gives_back_what_was_stored(cache: KernelCache) -> None:
    assert cache.load(DESCRIPTION) is None
    entry = cache.store(DESCRIPTION, LIBRARY, FACTS)
    assert load(cache) == entry == cache.load_or_build(DESCRIPTION, no_build)
    assert (entry.library, entry.facts) == (LIBRARY, FACTS)
    assert entry.description == {**DESCRIPTION, "strides": [1, 2]}


def test_the_order_of_names_does_not_matter_but_every_value_does(cache: KernelCache) -> None:
    cache.store(DESCRIPTION, LIBRARY, FACTS)
    assert cache.load(dict(reversed(DESCRIPTION.items()))) == load(cache)
    for other in ({**DESCRIPTION, "strides": (2, 1)}, {**DESCRIPTION, "strides": (True, 2)}, {}):
        assert cache.load(other) is None


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, float("nan"), float("inf"), Path("x")])
def test_only_json_describes_a_kernel(cache: KernelCache, value: object) -> None:
    for call in (cache.load, lambda it: cache.store(it, b"", {}), lambda it: cache.store({}, b"", it)):
        with pytest.raises((TypeError, ValueError)):
            call({"value": value})


def test_listing_counting_and_clearing(cache: KernelCache) -> None:
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, (0, 0))
    for number in range(3):
        cache.store({"number": number}, bytes(number), {"facts": number})
    listed = sorted(cache.entries(), key=lambda entry: entry.library_bytes)
    assert [entry.description for entry in listed] == [{"number": number} for number in range(3)]
    assert [entry.facts for entry in listed] == [{"facts": number} for number in range(3)]
    assert cache.size() == sum(path.stat().st_size for path in cache.folder.iterdir())
    assert cache.clear().kernels == 3
    assert (cache.entries(), cache.size(), cache.clear()) == ([], 0, (0, 0))


def test_a_failing_build_passes_through_and_leaves_no_lock(cache: KernelCache) -> None:
    def fail() -> tuple[bytes, dict[str, Any]]:
        raise RuntimeError("no register tile fits")

    with pytest.raises(RuntimeError, match="no register tile fits"):
        cache.load_or_build(DESCRIPTION, fail)
    assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY


def test_a_build_may_need_another_kernel_even_behind_the_same_lock(cache: KernelCache) -> None:
    def outer() -> tuple[bytes, dict[str, Any]]:
        return cache.load_or_build(DESCRIPTION, build).library + b"!", {}

    assert cache.load_or_build(DESCRIPTION, outer).library == LIBRARY + b"!"


# The folder


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(cache: KernelCache, mode: int) -> None:
    stored(cache)
    cache.folder.chmod(mode)
    check_all_refuse(cache, rf"mode {mode:04o}.*TVMCONVGRAD_CACHE_DIR")


def test_a_folder_that_others_can_read_is_used(cache: KernelCache) -> None:
    stored(cache)
    cache.folder.chmod(0o755)
    assert load(cache).library == LIBRARY


@needs_root
def test_a_folder_of_another_user_is_refused(cache: KernelCache) -> None:
    stored(cache)
    os.chown(cache.folder, 12345, -1)
    check_all_refuse(cache, "mode 0700.*belongs to user 12345")


def test_a_folder_is_foreign_to_everybody_but_its_owner(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache)
    monkeypatch.setattr(os, "geteuid", lambda: cache.folder.stat().st_uid + 1)
    check_all_refuse(cache, "belongs to user")


def test_a_file_in_place_of_the_folder_is_refused(cache: KernelCache) -> None:
    cache.folder.touch()
    check_all_refuse(cache, "is not a folder")


def test_a_link_is_as_good_as_the_folder_it_leads_to(cache: KernelCache, tmp_path: Path) -> None:
    stored(cache)
    link = tmp_path / "link"
    link.symlink_to(cache.folder)
    assert load(KernelCache(link)).library == LIBRARY
    cache.folder.chmod(0o777)
    check_all_refuse(KernelCache(link), "mode 0777")


def check_all_refuse(cache: KernelCache, reason: str) -> None:
    for call in (
        lambda: cache.load(DESCRIPTION),
        lambda: cache.store(DESCRIPTION, LIBRARY, FACTS),
        lambda: cache.load_or_build(DESCRIPTION, no_build),
        cache.entries,
        cache.size,
        cache.clear,
    ):
        with pytest.raises(CacheFolderError, match=reason):
            call()


def test_the_folder_is_made_for_this_user_alone(cache: KernelCache) -> None:
    mask = os.umask(0)
    try:
        path = stored(cache)
    finally:
        os.umask(mask)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_environment_is_read_at_each_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", "")
    assert stored(cache).parent == tmp_path / "xdg" / "tvmconvgrad"
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "other"))
    assert cache.load(DESCRIPTION) is None
    assert stored(cache).parent == tmp_path / "other"


# Disks


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_cannot_be_written_to_costs_a_warning(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(CacheWarning, match=os.strerror(number)):
        assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY
    with pytest.raises(OSError, match=os.strerror(number)):
        cache.store(DESCRIPTION, LIBRARY, FACTS)
    assert cache.load(DESCRIPTION) is None
    assert [path.name for path in cache.folder.iterdir()] == ["locks"]


def test_a_folder_that_cannot_be_created_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = KernelCache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match="cannot be kept") as found:
        assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY
    assert len(found) == 1


@pytest.mark.parametrize("put", [Path.touch, put_link_to_itself])
def test_something_in_the_way_of_the_locks(cache: KernelCache, put: Callable[[Path], None]) -> None:
    stored(cache).unlink()
    put(cache.folder / "locks")
    with pytest.warns(CacheWarning, match="without waiting"):
        cache.load_or_build(DESCRIPTION, build)
    assert load(cache).library == LIBRARY


def test_importing_the_cache_loads_no_compiler() -> None:
    code = "import sys, tvmconvgrad.cache.store; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "tvmconvgrad.cache.store" in loaded
    assert "tvm" not in loaded
