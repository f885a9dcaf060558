"""The machine: what it can do at most, and what to write beside results."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import archspec.cpu

from tvmconvgrad.bench.cpus import cpu_name
from tvmconvgrad.machines.targets import Target

_SOURCE = Path(__file__).with_name("machine.c")
_OPTIONS = ("-x", "c", "-std=gnu11", "-O3", "-ffp-contract=fast", "-pthread")
_COMPILERS = ("gcc", "clang", "cc", "g++", "clang++")
_PACKAGES = ("tvmconvgrad", "apache-tvm", "apache-tvm-ffi", "numpy", "onednn", "torch")


@dataclass(frozen=True)
class Roof:
    """What some threads reach together: FMAs on registers, and streams through memory."""

    gflops: float
    gigabytes: float
    """A second, of two streams read and one written."""

    def attainable(self, intensity: float) -> float:
        """GFLOP/s at `intensity` operations a byte."""
        return min(self.gflops, self.gigabytes * intensity)

    def to_dict(self) -> dict[str, float]:
        """Both numbers, as JSON's types."""
        return asdict(self)


def measure_roof(target: Target, cpus: list[int]) -> Roof:
    """Compile and run a small program on these CPUs: a second. ValueError where no C compiler works."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        program = str(Path(folder, "machine"))
        _compile(program, target)
        command = [program, str(len(cpus))]
        pin = "import os, sys; os.sched_setaffinity(0, {%s}); os.execv(sys.argv[1], sys.argv[1:])"
        words = [sys.executable, "-S", "-c", pin % ", ".join(map(str, cpus)), *command]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    gflops, gigabytes = (float(word) for word in done.stdout.split())
    return Roof(gflops, gigabytes)


def describe(target: Target, cpus: list[int]) -> dict[str, Any]:
    """CPU, target, cores and versions, for the report."""
    return {
        "cpu": cpu_name(),
        "microarchitecture": str(archspec.cpu.host().name),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "used_cpus": cpus,
        "threads": len(cpus),
        "target": str(target),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


def _compile(program: str, target: Target) -> None:
    """With the code of the target, or of this machine where the compiler has no such name."""
    name = "-march" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu"
    choices = [f"{name}={target.mcpu}"] if target.mcpu else []
    found = [path for compiler in (os.environ.get("CXX"), *_COMPILERS) if compiler and (path := shutil.which(compiler))]
    for compiler in found:
        for choice in (*choices, f"{name}=native"):
            command = [compiler, *_OPTIONS, choice, str(_SOURCE), "-o", program]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return
    raise ValueError(f"{_SOURCE.name}: cannot be compiled: none of {', '.join(_COMPILERS)} works; install gcc or clang")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
