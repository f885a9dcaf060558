"""How much the cache holds, by the lengths of its files and times that os.utime has set."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tvmconvgrad.cache import limit, uses
from tvmconvgrad.cache.entry import Entry, key_of
from tvmconvgrad.cache.store import SUFFIX, KernelCache
from tvmconvgrad.common import process

LIBRARY = bytes(10_000)
HOLDER = """
import sys
from pathlib import Path
from tvmconvgrad.cache.store import KernelCache
cache = KernelCache(Path(sys.argv[1]))
cache.keep_in_use(cache.load({"number": int(sys.argv[2])}))
print("loaded", flush=True)
sys.stdin.read()
"""
BUILDER = """
import sys
from pathlib import Path
from tvmconvgrad.cache.store import KernelCache
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 40):
    entry = KernelCache(Path(sys.argv[1])).load_or_build({"number": number}, lambda: (bytes(10_000), {"n": number}))
    assert entry.facts == {"n": number}
"""


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    process.forget()
    yield
    process.forget()


def build(cache: KernelCache, number: int) -> Entry:
    def make() -> tuple[bytes, dict[str, Any]]:
        return LIBRARY, {}

    return cache.load_or_build({"number": number}, make)


def path(cache: KernelCache, number: int) -> Path:
    return cache.folder / (key_of({"number": number}) + SUFFIX)


def fill(cache: KernelCache, count: int) -> int:
    """Kernels that were used a day apart, the first one longest ago; the bytes of each file."""
    for number in range(count):
        build(cache, number)
        used = time.time() - (count - number) * 86400
        os.utime(path(cache, number), (used, used))
    return path(cache, 0).stat().st_size


def left(cache: KernelCache, count: int = 10) -> list[int]:
    return [number for number in range(count) if path(cache, number).exists()]


def allow(monkeypatch: pytest.MonkeyPatch, bytes_: int) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_MAXSIZE", str(bytes_))


def test_what_was_used_longest_ago_goes_after_a_build(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    each = fill(cache, 5)
    allow(monkeypatch, 3 * each)
    build(cache, 5)
    assert left(cache) == [3, 4, 5]


def test_a_hit_is_a_use(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    each = fill(cache, 5)
    assert cache.load({"number": 0}) is not None
    build(cache, 1)
    allow(monkeypatch, 3 * each)
    build(cache, 5)
    assert left(cache) == [0, 1, 5]


def test_listing_is_no_use(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    each = fill(cache, 3)
    before = [path(cache, number).stat().st_mtime for number in range(3)]
    assert sorted(entry.used for entry in cache.entries()) == before
    assert {entry.file_bytes for entry in cache.entries()} == {each}
    assert [path(cache, number).stat().st_mtime for number in range(3)] == before


def test_files_are_counted_again_when_an_eighth_of_the_room_is_filled(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, files = [], limit._files
    each = fill(cache, 1)
    monkeypatch.setattr(limit, "_files", lambda *given: counts.append(given) or files(*given))
    allow(monkeypatch, 81 * each)
    for number in range(1, 21):  # room for 79 files after the first of these, so for 9 to the next count
        build(cache, number)
    assert len(counts) == 3
    for number in range(21, 100):
        build(cache, number)
    assert 79 * each < sum(path(cache, number).stat().st_size for number in left(cache, 100)) <= 81 * each


@pytest.mark.parametrize("text", ["0", "none", "1 TiB", ""])
def test_nothing_goes_without_need(cache: KernelCache, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_MAXSIZE", text)
    fill(cache, 5)
    assert left(cache) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("", 2 * 1024**3), ("500", 500), ("500MiB", 500 * 1024**2), ("1.5 GiB", 1610612736), ("3k", 3072), ("none", None)],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, bytes_: int | None) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_MAXSIZE", text)
    assert limit.limit() == bytes_


@pytest.mark.parametrize("text", ["-1", "2 apples", "GiB", "1e9", "٣"])
def test_what_is_no_size(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_MAXSIZE", text)
    with pytest.raises(ValueError, match=r"TVMCONVGRAD_CACHE_MAXSIZE: got .* expected a size such as"):
        limit.limit()


def test_the_newest_stays_however_little_is_allowed(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, 3)
    allow(monkeypatch, 1)
    build(cache, 3)
    assert left(cache) == [3]


def test_files_of_other_versions_and_what_was_set_aside_go_too(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = fill(cache, 2)
    old, aside = cache.folder / f"{'0' * 64}{SUFFIX}", cache.folder / "quarantine" / "1-some.kernel"
    aside.parent.mkdir()
    for file in (old, aside):
        file.write_bytes(b"cgkern\x00\x00" + bytes(5 * each))
        os.utime(file, (1, 1))
    allow(monkeypatch, 3 * each)
    build(cache, 2)
    assert left(cache) == [0, 1, 2]
    assert not old.exists()
    assert not aside.exists()


@contextmanager
def holder(cache: KernelCache, number: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded a kernel."""
    words = [sys.executable, "-c", HOLDER, str(cache.folder), str(number)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loaded\n"
        used = time.time() - 30 * 86400
        os.utime(path(cache, number), (used, used))
        try:
            yield child
        finally:
            child.kill()


def test_what_a_living_process_has_loaded_stays_until_it_is_killed(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = fill(cache, 4)
    allow(monkeypatch, 2 * each)
    with holder(cache, 0):
        build(cache, 4)
        assert left(cache) == [0, 4]
    build(cache, 5)
    assert left(cache) == [4, 5]
    assert not list((cache.folder / "locks").glob("use-*"))


def test_a_child_holds_what_its_parent_has_loaded(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    each = fill(cache, 2)
    entry = cache.load({"number": 0})
    assert entry is not None
    cache.keep_in_use(entry)
    os.utime(path(cache, 0), (1, 1))
    go, wake = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wake)
        os.read(go, 1)
        os._exit(0)
    process.forget()  # the parent lets go
    allow(monkeypatch, each)
    build(cache, 2)
    assert left(cache) == [0, 2]
    os.close(wake)
    os.waitpid(child, 0)
    os.close(go)
    build(cache, 3)
    assert left(cache) == [3]


def test_what_goes_between_reading_and_noting_is_stored_again(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache, 1)
    entry = cache.load({"number": 0})
    assert entry is not None
    allow(monkeypatch, 1)
    os.utime(path(cache, 0), (1, 1))
    build(cache, 1)
    assert left(cache) == [1]
    cache.keep_in_use(entry)
    assert left(cache) == [0, 1]
    assert cache.load({"number": 0}) == entry


def test_what_is_noted_while_it_goes_comes_back(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, 1)
    allow(monkeypatch, 1)
    rename = Path.rename

    def note_meanwhile(self: Path, target: Path) -> Path:
        if self == path(cache, 0):
            assert uses.note(cache.folder / "locks", key_of({"number": 0}))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", note_meanwhile)
    build(cache, 1)
    assert left(cache) == [0, 1]


def test_what_a_killed_process_left_while_removing_comes_back(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = fill(cache, 3)
    path(cache, 2).rename(cache.folder / f"going-{key_of({'number': 2})}")
    allow(monkeypatch, 2 * each)
    build(cache, 3)
    build(cache, 4)
    assert left(cache) == [3, 4]
    assert not list(cache.folder.glob("going-*"))


def test_two_processes_at_once(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    each = fill(cache, 1)
    allow(monkeypatch, 5 * each)
    words = [sys.executable, "-W", "error", "-c", BUILDER, str(cache.folder)]
    children = [subprocess.Popen([*words, str(begin)]) for begin in (100, 120)]  # half of the kernels are the same
    assert [child.wait(120) for child in children] == [0, 0]
    build(cache, 1)
    sizes = [file.stat().st_size for file in cache.folder.glob(f"*{SUFFIX}")]
    assert 4 * each < sum(sizes) <= 5 * each
    assert path(cache, 1).exists()
