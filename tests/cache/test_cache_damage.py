"""What the store of built kernels does with files that are damaged, foreign, or no files."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.cache_support import (
    DESCRIPTION,
    FACTS,
    LIBRARY,
    build,
    check_refused_and_rebuilt,
    load,
    needs_root,
    put_folder,
    put_link_to_itself,
    put_socket,
    stored,
)
from tvmconvgrad.cache import store as cache_module
from tvmconvgrad.cache.entry import Entry, pack, read_entry
from tvmconvgrad.cache.folder import QUARANTINE_FILES
from tvmconvgrad.cache.store import CacheWarning, KernelCache

pytestmark = pytest.mark.filterwarnings("error")
FILE_BYTES = len(pack(Entry.of(DESCRIPTION, LIBRARY, FACTS)))
NOT_JSON = [b"", b"{", b"[1]", b"5", b"\xff", b'{"a":NaN}', b"[" * 200_000, b"9" * 9_999]


@pytest.fixture(scope="module")
def long_cache() -> Iterator[KernelCache]:
    with TemporaryDirectory() as folder:
        yield KernelCache(Path(folder))


def quarantined(cache: KernelCache) -> list[Path]:
    return list((cache.folder / "quarantine").glob("*"))


@pytest.mark.parametrize("length", range(FILE_BYTES))
def test_a_truncated_file_is_built_again(long_cache: KernelCache, length: int) -> None:
    os.truncate(stored(long_cache), length)
    check_refused_and_rebuilt(long_cache)


@given(position=st.integers(0, FILE_BYTES - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed(long_cache: KernelCache, position: int, flip: int) -> None:
    path = stored(long_cache)
    content = bytearray(path.read_bytes())
    content[position] ^= flip
    path.write_bytes(content)
    check_refused_and_rebuilt(long_cache)


@given(content=st.binary(max_size=300), keep=st.integers(0, FILE_BYTES))
def test_other_content_is_noticed(long_cache: KernelCache, content: bytes, keep: int) -> None:
    path = stored(long_cache)
    before = path.read_bytes()
    path.write_bytes(before[:keep] + content)
    if path.read_bytes() != before:
        check_refused_and_rebuilt(long_cache)
    assert load(long_cache).library == LIBRARY


def forged(description: bytes, facts: bytes) -> bytes:
    """A file that is right in everything but that its description and facts may be any bytes."""
    head = struct.pack(">8s3Q", b"cgkern\x00\x01", len(description), len(facts), len(LIBRARY))
    payload = description + facts + LIBRARY
    return head + hashlib.sha256(head + payload).digest() + payload


@pytest.mark.parametrize("text", NOT_JSON)
def test_a_file_that_is_not_json_is_set_aside(cache: KernelCache, text: bytes) -> None:
    path = stored(cache)
    for content in (forged(text, b"{}"), forged(b"{}", text)):
        path.write_bytes(content)
        check_refused_and_rebuilt(cache)


def test_the_format_is_the_one_that_the_damage_is_done_to(cache: KernelCache) -> None:
    key = cache.store({}, b"", {}).key
    (cache.folder / f"{key}.kernel").write_bytes(forged(b"{}", b'{"a":1}'))
    entry = cache.load({})
    assert entry is not None
    assert (entry.library, entry.facts) == (LIBRARY, {"a": 1})


def test_a_valid_kernel_under_the_name_of_another_is_set_aside(cache: KernelCache) -> None:
    path = stored(cache)
    foreign = cache.folder / f"{cache.store({'other': 1}, b'other', {}).key}.kernel"
    path.write_bytes(foreign.read_bytes())
    check_refused_and_rebuilt(cache, "another kernel")
    assert [old.read_bytes() for old in quarantined(cache)] == [foreign.read_bytes()]


def _link_to_valid(path: Path) -> None:
    copy = path.parent.parent / "valid"
    KernelCache(copy).store(DESCRIPTION, LIBRARY, FACTS)
    path.symlink_to(copy / path.name)


def _writable(path: Path) -> None:
    path.write_bytes(pack(Entry.of(DESCRIPTION, LIBRARY, FACTS)))
    path.chmod(0o666)


@pytest.mark.parametrize("put", [put_folder, put_link_to_itself, _link_to_valid, put_socket, os.mkfifo, _writable])
def test_what_is_no_private_file_is_set_aside(cache: KernelCache, put: Callable[[Path], None]) -> None:
    path = stored(cache)
    path.unlink()
    put(path)
    check_refused_and_rebuilt(cache)
    assert len(quarantined(cache)) == 1


@needs_root
def test_a_file_of_another_user_is_set_aside(cache: KernelCache) -> None:
    os.chown(stored(cache), 12345, -1)
    check_refused_and_rebuilt(cache, "belongs to user 12345")


def test_the_quarantine_keeps_the_newest(cache: KernelCache) -> None:
    for number in range(QUARANTINE_FILES + 5):
        stored(cache).write_text(str(number))
        check_refused_and_rebuilt(cache)
    kept = {path.read_text() for path in quarantined(cache)}
    assert kept == {str(number) for number in range(5, QUARANTINE_FILES + 5)}
    assert cache.clear().kernels == 1
    assert not quarantined(cache)


@pytest.mark.parametrize("put", [Path.touch, put_link_to_itself, os.mkfifo])
def test_something_in_the_way_of_the_quarantine(cache: KernelCache, put: Callable[[Path], None]) -> None:
    stored(cache).write_bytes(b"")
    put(cache.folder / "quarantine")
    check_refused_and_rebuilt(cache)


def test_a_file_that_cannot_be_moved_is_replaced(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EACCES, "no")

    stored(cache).write_bytes(b"")
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.warns(CacheWarning, match="set aside"):
        assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY
    assert load(cache).library == LIBRARY


def test_a_kernel_that_was_replaced_meanwhile_is_not_set_aside(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(cache)
    path.write_bytes(b"damaged")

    def read_and_repair(path: Path) -> Entry:
        try:
            return read_entry(path)
        finally:
            cache.store(DESCRIPTION, LIBRARY, FACTS)

    with monkeypatch.context() as patch, pytest.warns(CacheWarning):
        patch.setattr(cache_module, "read_entry", read_and_repair)
        assert cache.load(DESCRIPTION) is None
    assert load(cache).library == LIBRARY


def test_a_file_that_claims_more_than_there_is_memory_is_set_aside(cache: KernelCache) -> None:
    path, length = stored(cache), 1 << 40
    head = struct.pack(">8s3Q", b"cgkern\x00\x01", 2, 2, length - 4)
    path.write_bytes(head + bytes(32))
    os.truncate(path, len(head) + 32 + length)
    check_refused_and_rebuilt(cache, "more than any kernel")
