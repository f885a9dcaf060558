"""Libraries loaded from files that are gone at once."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tvmconvgrad.compiling.private_file import library_file


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_each_library_answers_after_its_file_is_gone(tmp_path: Path) -> None:
    loaded = []
    for number in (1, 2, 3):
        source, library = tmp_path / "answer.c", tmp_path / "answer.so"
        source.write_text(f"int answer(void) {{ return {number}; }}")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        with library_file(library.read_bytes()) as path:
            loaded.append(ctypes.CDLL(str(path)))
        assert not path.exists()
        assert not path.parent.exists()
    assert [one.answer() for one in loaded] == [1, 2, 3]


def test_nobody_else_can_reach_the_file_and_it_goes_when_loading_fails() -> None:
    with pytest.raises(OSError, match=r"kernel\.so"), library_file(b"no library") as path:
        assert path.suffix == ".so"
        assert path.parent.stat().st_mode & 0o777 == 0o700
        ctypes.CDLL(str(path))
    assert not path.parent.exists()
