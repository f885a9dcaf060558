"""CUDA's compilers: nvcc, or NVRTC's library where that is all there is."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tvmconvgrad.common import programs
from tvmconvgrad.common.errors import MissingToolkit
from tvmconvgrad.compiler.cuda import nvrtc

_USUAL = "/usr/local/cuda"
# No fast mathematics: a division by zero, or a denormal, is what it is on the CPU.
_OPTIONS = ("-O3", "-std=c++17", "--disable-warnings", "-Xptxas", "-v")
_ADVICE = (
    "a GPU's kernel is compiled by CUDA's toolkit and none was found that works: install nvcc (NVIDIA's package "
    "cuda-nvcc, or the whole toolkit) and put it on the PATH or name its folder in CUDA_HOME; or pip install "
    "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
)
_REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
# C7510, C7514: products one after the other; C7517, C7519: a wait or a hand-over of sums that the code does not have.
_SERIALIZED = r"\(C75\d\d\) .* function '{}'"


class Usage(NamedTuple):
    """What a function takes of a multiprocessor: registers of a thread, shared memory that its code declares, in bytes,
    and what of each thread's registers lies in memory, in bytes. `serialized`: it waits for products of `wgmma` where
    its source lets them go on."""

    function: str
    registers: int
    shared_bytes: int
    spilled_bytes: int
    serialized: bool


@dataclass(frozen=True)
class Code:
    """Machine code as NVIDIA's driver takes it, what made it, and what its functions take."""

    image: bytes
    compiler: str
    usage: tuple[Usage, ...]


def compile_source(source: str, arch: str) -> Code:
    """CUDA's C++ as machine code for an architecture and, by nvcc, PTX for later ones.

    Raises ValueError for an architecture that the toolkit does not know, MissingToolkit without a toolkit.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        return _by_nvrtc(source, arch, "sm")
    _check(arch, architectures(nvcc), compiler_of(nvcc))
    generate = [f"arch=compute_{arch[3:]},code={code}_{arch[3:]}" for code in ("sm", *_goes_on(arch))]
    options = [word for each in generate for word in ("-gencode", each)]
    image, report = _run(nvcc, source, "-fatbin", *_OPTIONS, *options)
    return Code(image, compiler_of(nvcc), _usage(report))


def to_ptx(source: str, arch: str) -> str:
    """CUDA's C++ as PTX, to be read. Raises what compile_source raises."""
    nvcc = find_nvcc()
    if nvcc is None:
        return _by_nvrtc(source, arch, "compute").image.decode().rstrip("\0")
    _check(arch, architectures(nvcc), compiler_of(nvcc))
    text, _ = _run(nvcc, source, "-ptx", *_OPTIONS, f"-arch=compute_{arch[3:]}")
    return text.decode()


def installed() -> str | None:
    """What compile_source compiles with, and its version; None without a toolkit."""
    nvcc = find_nvcc()
    if nvcc is not None:
        try:
            return f"{compiler_of(nvcc)}, {nvcc}"
        except MissingToolkit:
            return f"{nvcc}, which does not work"
    library = nvrtc.find()
    return None if library is None else f"NVRTC {library.version}, {library.path}"


def find_nvcc() -> str | None:
    """nvcc in the folder that CUDA_HOME or CUDA_PATH names, on the PATH, or in CUDA's usual folder."""
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [*(str(Path(folder, "bin", "nvcc")) for folder in folders if folder), "nvcc", f"{_USUAL}/bin/nvcc"]
    return next((found for found in map(shutil.which, candidates) if found), None)


@functools.cache
def architectures(nvcc: str) -> tuple[str, ...]:
    """The architectures that nvcc makes code for, "sm_90" among them."""
    return tuple(f"sm_{word.rpartition('_')[2]}" for word in _output(nvcc, "--list-gpu-code").split())


def _goes_on(arch: str) -> tuple[str, ...]:
    """PTX beside the machine code, unless the architecture's own instructions (sm_90a) let it go nowhere."""
    return ("compute",) if arch[-1].isdigit() else ()


def _check(arch: str, known: tuple[str, ...], compiler: str) -> None:
    if arch.rstrip("af") not in known:
        raise ValueError(f"target: arch {arch!r} is unknown to {compiler}, expected one of {', '.join(known)}")


@functools.cache
def compiler_of(nvcc: str) -> str:
    """nvcc with its version."""
    found = re.search(r"\bV([0-9.]+)", _output(nvcc, "--version"))
    return f"nvcc {found[1]}" if found else "nvcc"


def _output(*command: str) -> str:
    try:
        return programs.run(command).stdout
    except (OSError, subprocess.CalledProcessError) as reason:
        raise MissingToolkit(f"{_ADVICE}; {reason}") from None


def _run(nvcc: str, source: str, *options: str) -> tuple[bytes, str]:
    """What nvcc makes of a source, and its report."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        path, made = Path(folder, "kernel.cu"), Path(folder, "kernel.out")
        path.write_text(source, encoding="utf-8")
        command = [nvcc, *options, str(path), "-o", str(made)]
        try:
            done = programs.run(command, cwd=folder)
        except OSError as reason:
            raise MissingToolkit(f"{_ADVICE}; {nvcc} cannot be run: {reason}") from None
        except subprocess.CalledProcessError as reason:
            raise MissingToolkit(f"{_ADVICE}; {' '.join(command)} failed:\n{reason.stderr}") from None
        return made.read_bytes(), done.stdout + done.stderr


def _usage(report: str) -> tuple[Usage, ...]:
    """What ptxas tells of each function."""
    found = []
    for part in report.split("ptxas info    : Compiling")[1:]:
        match = _REPORT.search(f"Compiling{part}")
        if match:
            shared = re.search(r"(\d+) bytes smem", match["rest"])
            spilled = int(match["stores"]) + int(match["loads"])
            waits = re.search(_SERIALIZED.format(re.escape(match["name"])), report) is not None
            found.append(Usage(match["name"], int(match["registers"]), int(shared[1]) if shared else 0, spilled, waits))
    return tuple(found)


def _by_nvrtc(source: str, arch: str, kind: str) -> Code:
    library = nvrtc.find()
    if library is None:
        raise MissingToolkit(_ADVICE)
    compiler = f"NVRTC {library.version}"
    _check(arch, library.architectures, compiler)
    return Code(nvrtc.compile_source(library, source, f"{kind}_{arch[3:]}"), compiler, ())
