"""Libraries loaded from files that are gone at once, in memory or in the system's temporary folder."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tvmconvgrad.files import library_file as files_module
from tvmconvgrad.files.library_file import library_file
from tvmconvgrad.files.temporary import TemporaryFolderError


def no_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)


def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "symlink", refuse)


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        no_memory_files(monkeypatch)
    return str(request.param)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_each_library_answers_after_its_file_is_gone(tmp_path: Path, place: str) -> None:
    loaded = []
    for number in range(1, 6):
        source, library = tmp_path / "answer.c", tmp_path / "answer.so"
        source.write_text(f"int answer(void) {{ return {number}; }}")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        with library_file(library.read_bytes()) as path:
            loaded.append(ctypes.CDLL(path))
        if place == "folder":
            assert not Path(path).parent.exists()
    assert [one.answer() for one in loaded] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("links", ["followed", "refused", "not followed"])
def test_no_path_comes_back(monkeypatch: pytest.MonkeyPatch, links: str) -> None:
    if links == "refused":
        no_folder(monkeypatch)
    if links == "not followed":  # a folder that is mounted with nosymfollow
        link = os.symlink
        monkeypatch.setattr(os, "symlink", lambda _, path: link(path, path))
    paths = []
    for _ in range(40):
        with library_file(b"no library") as path:
            assert Path(path).read_bytes() == b"no library"
            paths.append(path)
    assert len(set(paths)) == 40


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_no_loaded_library_has_the_path_of_a_file_that_is_opened_later(tmp_path: Path, place: str) -> None:
    """libbacktrace reads the files of all libraries; one that is empty crashes the process."""
    source, library = tmp_path / "nothing.c", tmp_path / "nothing.so"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with library_file(library.read_bytes()) as path:
        ctypes.CDLL(path)
    with ExitStack() as files:
        for _ in range(100):
            files.enter_context(tempfile.TemporaryFile())
        assert not Path(path).exists()


def test_nobody_else_can_reach_the_file_and_it_goes_when_loading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory_files(monkeypatch)
    with pytest.raises(OSError, match=r"kernel\.so"), library_file(b"no library") as path:
        assert path.endswith(".so")
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        ctypes.CDLL(path)
    assert not Path(path).parent.exists()


def test_no_descriptor_is_left(place: str) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(OSError), library_file(b"no library") as path:
            ctypes.CDLL(path)
    assert os.listdir("/proc/self/fd") == before


def test_where_nothing_can_be_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(TemporaryFolderError) as error, library_file(b"library"):
        pytest.fail("it cannot be executed")
    assert str(error.value).startswith(f"temporary folder {tmp_path}: ")
    assert str(error.value).endswith("name another one in TMPDIR")
    assert "noexec" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_memory_that_is_full(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files_module.os, "write", refuse)
    with library_file(b"library") as path:
        assert Path(path).name == "kernel.so"


def test_nothing_is_left_wherever_a_signal_interrupts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a signal's handler raises comes between two instructions of Python's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for moment in range(1000):
        try:
            with _interrupted(moment), library_file(b"library") as path:
                assert Path(path).exists()
        except KeyboardInterrupt:
            assert not list(tmp_path.iterdir()), moment
        else:
            break
    assert 100 < moment < 999


@contextmanager
def _interrupted(moment: int) -> Iterator[None]:
    """Raise KeyboardInterrupt before the instruction of this number in library_file's module."""
    left = [moment]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = frame.f_code.co_filename == files_module.__file__
        if event == "opcode":
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
