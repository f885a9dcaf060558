"""Kernels of AArch64 on another machine: linked by a cross compiler, and run by qemu's emulation of one process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.cases.case import DTYPES
from tests.support.cases.convolution import Array, Shape

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
needs_cross_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
needs_emulator = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None, reason=f"needs {COMPILER} and {EMULATOR}"
)
_CODES = {"f32": 2, "f16": 2, "bf16": 4}  # DLPack's
_SOURCE = Path(__file__).with_name("call_kernel.c")


@dataclass(frozen=True)
class Emulation:
    """A folder with the program that calls kernels."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> Emulation:
        command = [COMPILER, "-std=gnu11", "-O2", "-Wall", "-o", str(folder / "call_kernel"), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        return cls(folder)

    def run(self, cpu: str, library: bytes, inputs: Sequence[Array], shapes: Sequence[Shape], threads: int) -> Array:
        """A kernel's result, for inputs whose shapes and the result's are as its tensors say."""
        dtype = next(name for name, one in DTYPES.items() if one == inputs[0].dtype)
        paths = [self.folder / name for name in ("first", "second", "result")]
        for path, array in zip(paths, inputs, strict=False):
            path.write_bytes(array.tobytes())
        (self.folder / "kernel.so").write_bytes(library)
        words = [str(threads), str(_CODES[dtype]), str(DTYPES[dtype].itemsize * 8)]
        for path, shape in zip(paths, shapes, strict=True):
            words += [str(path), "x".join(map(str, shape))]
        emulator = [EMULATOR, "-cpu", cpu, "-L", str(system_root()), str(self.folder / "call_kernel")]
        done = subprocess.run([*emulator, str(self.folder / "kernel.so"), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return np.fromfile(paths[2], DTYPES[dtype]).reshape(shapes[2])


def system_root() -> Path:
    """The folder with AArch64's libc: the loader lies in its lib."""
    command = [COMPILER, "-print-file-name=ld-linux-aarch64.so.1"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()).resolve().parents[1]
