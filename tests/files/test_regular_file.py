"""What lies where a file is expected is read, or is an error at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cache.cache_support import put_folder, put_link_to_itself, put_socket
from tvmconvgrad.files.regular_file import UnfitFile, read_regular


def test_a_file_is_read_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "file", 3) == read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(UnfitFile, match="it is no regular file"):
        read_regular(tmp_path / "link", 3, follow=False)
    with pytest.raises(UnfitFile, match="it has 3 bytes, expected at most 2"):
        read_regular(tmp_path / "file", 2)


@pytest.mark.parametrize("put", [put_folder, put_socket, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "file")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UnfitFile, match="it is no regular file"):
        read_regular(tmp_path / "file", 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_and_a_link_to_itself(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "file", 100)
    put_link_to_itself(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "file", 100)
