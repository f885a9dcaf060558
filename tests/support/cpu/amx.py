"""Programs for AMX on any x86 CPU: functions in C take the place of its instructions."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.building.compilers import compiler
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.host import host_architecture, missing_features
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.tir.passes import tiles

AMX = "llvm -mcpu=x86-64-v4 -mattr=+avx512bf16,+amx-bf16 -mtriple=x86_64-linux-gnu"
HAS_AMX = not missing_features({"avx512_bf16", "amx_tile", "amx_bf16"})
WAYS = [
    pytest.param("emulated", marks=pytest.mark.skipif(host_architecture() != "x86_64", reason="code of x86")),
    pytest.param("native", marks=pytest.mark.skipif(not HAS_AMX, reason="this CPU has no AMX_BF16")),
]
_SOURCE = Path(__file__).with_name("amx.c")


def library(scheduled: Scheduled, way: str) -> bytes:
    """The library of a program for AMX: for this CPU with the emulated instructions, or "native"."""
    if way == "native":
        return llvm.compile_scheduled(scheduled, parse_target(AMX))
    with _emulated():
        return llvm.compile_scheduled(scheduled, parse_target(None))


@contextmanager
def _emulated() -> Iterator[None]:
    _load_emulator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "INTRINSICS", "emulated_")
        yield


@functools.cache
def _load_emulator() -> ctypes.CDLL:
    """Kernels' libraries find its functions by their names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "amx.so"
        options = ["-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run([compiler(), *options, str(_SOURCE), "-o", str(path), "-lm"], check=True)
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
