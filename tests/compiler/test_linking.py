"""From an object file to a shared library: by the C compiler's linker, or by the C compiler where that fails."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import linking
from tvmconvgrad.machines.targets import host_architecture
from tvmconvgrad.runtime.native import Layout

KERNEL = "int __tvm_ffi_main(void *self, const void *arguments, int count, void *result) { return count != 3; }\n"
NEEDS_MATHS = "#include <math.h>\nvolatile double angle = 1;\n" + KERNEL.replace("3", "(cos(angle) > 1 ? 2 : 3)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def code(source: str, folder: Path) -> bytes:
    (folder / "kernel.c").write_text(source)
    subprocess.run(["gcc", "-c", "-fPIC", folder / "kernel.c", "-o", folder / "kernel.o"], check=True)
    return (folder / "kernel.o").read_bytes()


def use_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Path:
    """A C compiler that writes down what it is asked for, after doing something else. Where it does so."""
    compiler, log = folder / "cc", folder / "log"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{before}\nexec gcc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return log


def works(library: bytes, folder: Path) -> bool:
    path = folder / "library.so"
    path.write_bytes(library)
    loaded = ctypes.CDLL(str(path))
    loaded.tvmconvgrad_set_layout(ctypes.byref(Layout(count=3)))
    return int(loaded.tvmconvgrad_run(None, None, None, None, None, 0)) == 0


def links(log: Path) -> int:
    """How many libraries the C compiler has linked."""
    asked = [line.split() for line in log.read_text().splitlines()]
    return sum("-shared" in words and "-###" not in words for words in asked)


def test_the_c_compiler_is_asked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = use_compiler(folder, monkeypatch)
    libraries = [linking.link(code(KERNEL, folder), host_architecture()) for _ in range(3)]
    assert works(libraries[-1], folder)
    asked = log.read_text().splitlines()
    assert links(log) == 0
    assert len(asked) == 3  # to compile library.c, how it would link, and which linker is its own


@pytest.mark.parametrize(
    "before",
    [
        'case "$*" in *-###*) exit 1;; esac',
        'case "$*" in *-###*) echo nothing >&2; exit;; esac',
        'case "$*" in *-###*) for word; do :; done; echo " /bin/false $*" >&2; exit;; esac',
        'case "$*" in *-###*) echo " \'/nowhere/ld $*" >&2; exit;; esac',
        'case "$*" in *-print-prog-name*) echo /nowhere/ld; exit;; esac',
    ],
)
def test_a_linker_that_is_not_told_or_fails(before: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = use_compiler(folder, monkeypatch, before)
    assert works(linking.link(code(KERNEL, folder), host_architecture()), folder)
    assert links(log) == 1


def test_a_kernel_that_needs_another_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No symbol is left undefined, which would be found when the kernel is loaded."""
    log = use_compiler(folder, monkeypatch, 'case "$*" in *-shared*) set -- "$@" -lm;; esac')
    assert works(linking.link(code(NEEDS_MATHS, folder), host_architecture()), folder)
    assert links(log) == 1


def test_places_that_are_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(folder, monkeypatch)
    monkeypatch.setenv("CXX", "./cc")
    monkeypatch.chdir(folder)
    assert works(linking.link(code(KERNEL, folder), host_architecture()), folder)


def test_code_that_cannot_be_linked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(folder, monkeypatch)
    with pytest.raises(MissingLinker, match=r"(?s)cc failed: .*/cc -shared .*kernel\.o"):
        linking.link(b"no code", host_architecture())
