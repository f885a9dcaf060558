"""NVRTC: CUDA's compiler as a library, which PyTorch's and CuPy's packages bring along. No toolkit, no C++ compiler."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARY = "libnvrtc.so*"
_HEADER = "cuda_fp16.h"
# What comes with it but is none of it.
_OTHERS = ("builtins", "alt")


class CompileError(ValueError):
    """The source, or the architecture, is not accepted; the text is NVRTC's."""


@dataclass(frozen=True)
class Library:
    """The library, and folders with CUDA's headers."""

    path: str
    headers: tuple[str, ...]

    @functools.cached_property
    def functions(self) -> ctypes.CDLL:
        """The library, opened behind its other half, which it looks for by name."""
        for builtins in Path(self.path).parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins))
        return ctypes.CDLL(self.path)

    @functools.cached_property
    def version(self) -> str:
        """Of the library."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.functions.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    @functools.cached_property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that it makes code for, "sm_90" among them."""
        count = ctypes.c_int()
        self.functions.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self.functions.nvrtcGetSupportedArchs(found)
        return tuple(f"sm_{number}" for number in found)


@functools.cache
def find() -> Library | None:
    """NVRTC among Python's packages or in CUDA_HOME; None where it, or CUDA's headers, are not there."""
    roots = [Path(folder) for name in ("CUDA_HOME", "CUDA_PATH") if (folder := os.environ.get(name))]
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    roots += [child for folder in packages for child in sorted(folder.iterdir(), reverse=True) if child.is_dir()]
    libraries = [path for root in roots for lib in ("lib64", "lib") for path in sorted((root / lib).glob(_LIBRARY))]
    libraries = [path for path in libraries if not any(other in path.name for other in _OTHERS)]
    headers = [root / "include" for root in roots if (root / "include" / _HEADER).is_file()]
    if not libraries or not headers:
        return None
    more = [folder / "cccl" for folder in headers if (folder / "cccl").is_dir()]
    return Library(str(libraries[0]), tuple(map(str, [*headers, *more])))


def compile_source(library: Library, source: str, arch: str) -> bytes:
    """Machine code for sm_90, or PTX for compute_90. CompileError."""
    program, functions = ctypes.c_void_p(), library.functions
    source = re.sub(r"^\s*#include <cuda\.h>$", "", source, flags=re.MULTILINE)  # the driver's: NVRTC knows no host
    functions.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={arch}", "-std=c++17", "-w", *(f"-I{folder}" for folder in library.headers)]
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if functions.nvrtcCompileProgram(program, len(options), words):
            text = _read(functions, program, "nvrtcGetProgramLog").decode(errors="replace")
            raise CompileError(f"NVRTC {library.version} refuses a kernel for {arch}:\n{text}")
        return _read(functions, program, "nvrtcGetCUBIN" if arch.startswith("sm_") else "nvrtcGetPTX")
    finally:
        functions.nvrtcDestroyProgram(ctypes.byref(program))


def _read(functions: Any, program: ctypes.c_void_p, name: str) -> bytes:
    """What a function gives, for which another one has the size."""
    size = ctypes.c_size_t()
    functions[f"{name}Size"](program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    functions[name](program, text)
    return text.raw
