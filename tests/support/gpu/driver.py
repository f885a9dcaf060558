"""NVIDIA GPUs that are not there: a driver in C (fake_cuda.c), and a toolkit whose machine code is the host's.

What CUDA's C++ of the rule `naive` says runs on the host, thread after thread: no thread of it waits for another one.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.building.compilers import compiler
from tvmconvgrad.compiler.cuda import toolkit
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.nvidia.driver import Driver

if TYPE_CHECKING:
    from tvmconvgrad.schedules import Rule

_WAITS = re.compile(r'asm volatile\("griddepcontrol\.\w+;\\n" ::: "memory"\);')  # kernels end before the next begins
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{')
_PREAMBLE = """
#include <stdint.h>
#define __global__
#define __launch_bounds__(count)
#define __restrict__
struct Place { unsigned x, y, z; };
static thread_local Place blockIdx, threadIdx;
"""
_RUN = """
extern "C" void run_{name}(const unsigned* grid, const unsigned* block, void** arguments) {{
  for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++)
      {name}({values});
}}
"""


@dataclass
class FakeGpus:
    """The driver as the package sees it, and what it noted."""

    driver: Driver
    library: ctypes.CDLL

    def set_up(self, devices: int = 1, architecture: str = "sm_90") -> None:
        """So many devices, and nothing noted."""
        number = int(architecture[3:])
        self.library.fake_reset(devices, number // 10, number % 10)

    def fail(self, function: str, status: int) -> None:
        """Let a function of the driver fail from now on."""
        self.library.fake_fail(function.encode(), status)

    @property
    def log(self) -> list[str]:
        """What was called."""
        text: bytes = self.library.fake_log()
        return text.decode().splitlines()


def make_driver(folder: Path) -> FakeGpus:
    """The driver, compiled."""
    path = folder / "libfakecuda.so"
    source = Path(__file__).with_name("fake_cuda.c")
    words = [compiler(), "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(path), "-ldl"]
    subprocess.run(words, check=True)
    library = ctypes.CDLL(str(path))
    library.fake_log.restype = ctypes.c_char_p
    return FakeGpus(Driver(str(path)), library)


class FakeToolkit:
    """In place of toolkit.compile_source: an image is the path of a library, as fake_cuda.c loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, source: str, arch: str) -> Any:
        """C++ in f32 by the rule `threads` as such an image."""
        self.count += 1
        path, made = self.folder / f"{self.count}.cpp", self.folder / f"{self.count}.so"
        kernels = _WAITS.sub("", source[source.index('extern "C" __global__') :])
        runs = [_run(name, parameters.split(",")) for name, parameters in _KERNEL.findall(kernels)]
        path.write_text(_PREAMBLE + kernels + "".join(runs))
        subprocess.run([compiler("g++"), "-w", "-O1", "-shared", "-fPIC", str(path), "-o", str(made)], check=True)
        return toolkit.Code(str(made).encode() + b"\0", "fake", ())


def _run(name: str, parameters: list[str]) -> str:
    types = [parameter.split("*")[0].strip() for parameter in parameters]
    values = ", ".join(f"*({kind}**)arguments[{place}]" for place, kind in enumerate(types))
    return _RUN.format(name=name, values=values)


def patch_toolkit(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Compile for GPUs by the rule `naive` and such a toolkit, from now on."""
    from tvmconvgrad.machines.backends import BACKENDS

    patch.setattr(toolkit, "compile_source", FakeToolkit(folder))
    patch.setitem(BACKENDS, "cuda", replace(BACKENDS["cuda"], rules=f"{__name__}:naive_rules"))


def naive_rules(target: Target) -> list[Rule]:
    """The one rule whose kernels the stand-in driver has."""
    from tvmconvgrad.schedules.cuda.naive.rule import NaiveRule

    return [NaiveRule()]
