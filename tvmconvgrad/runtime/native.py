"""TVM's runtime in this process, without TVM's Python package or compiler, and the functions of built kernels."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm_ffi

from tvmconvgrad.build.private_file import library_file

Function = Callable[..., Any]


@functools.cache
def load_runtime() -> None:
    """Load TVM's runtime library: a kernel's loader takes its thread pool and its workspace from there."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package apache-tvm, which brings the runtime library, is not installed")
    folder = Path(spec.submodule_search_locations[0], "lib")
    for name in ("libtvm_runtime.so", "libtvm_runtime.dylib", "tvm_runtime.dll"):
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
            return
    raise ImportError(f"no TVM runtime library in {folder}: is apache-tvm installed completely?")


def load_function(library: bytes) -> Function:
    """The function of a built kernel. It is called with its tensors and releases Python's lock while it runs."""
    load_runtime()
    with library_file(library) as path:
        module = tvm_ffi.load_module(str(path))
    function: Function = module["main"]
    return function
