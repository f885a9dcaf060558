"""The libraries of built kernels in this process, called by C's rules; neither TVM nor its runtime is loaded.

What a library needs of a runtime is in compiling/services.c, how it calls its kernel in compiling/calling.c.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from math import prod
from typing import Any

from tvmconvgrad.compiling.private_file import library_file
from tvmconvgrad.spec import Problem

DL_DTYPES = {"f32": (2, 32), "f16": (2, 16), "bf16": (4, 16)}
"""DLDataType: code and bits."""


class DLTensor(ctypes.Structure):
    """DLPack's description of a tensor. Strides of None mean dense rows; `data` is an address or None."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


PYTHON_SYMBOL = "call_python_1"
"""How the name of compiling/python.c's function ends. The number changes with its arguments: a bundle may be older."""

_TENSORS, _AXES = 3, 5


class Layout(ctypes.Structure):
    """Layout of compiling/calling.c: the type of two inputs and the result, and their shapes."""

    _fields_ = (
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("ndim", ctypes.c_int32 * _TENSORS),
        ("shape", ctypes.c_int64 * _AXES * _TENSORS),
        ("bytes", ctypes.c_uint64 * _TENSORS),
    )


def layout_of(problem: Problem) -> Layout:
    """What C is told of a problem's tensors."""
    shapes = (*problem.input_shapes, problem.output_shape)
    code, bits = DL_DTYPES[problem.dtype]
    layout = Layout(code, bits, tuple(map(len, shapes)))
    for place, shape in enumerate(shapes):
        layout.shape[place][: len(shape)] = shape
        layout.bytes[place] = prod(shape) * bits // 8
    return layout


class Function:
    """A kernel's function. It is called with the addresses of its tensors and releases Python's lock while it runs.

    `name` is what the library's functions begin with, `run` the kernel's; `explain` makes an exception of a status that
    is not 0. `call_python` is None where an older version of this package made the library.
    """

    def __init__(self, library: ctypes.CDLL, name: str, run: str, explain: Callable[[int], Exception]) -> None:
        python = f"{name}_{PYTHON_SYMBOL}"
        self.library = library
        self._run = library[run]
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.explain = explain
        self.address = ctypes.cast(self._run, ctypes.c_void_p).value
        self.call_python = _CALL_PYTHON((python, library)) if hasattr(library, python) else None

    def __call__(self, first: int, second: int, out: int) -> None:
        """Run on dense tensors at these addresses; raises what `explain` makes of a status that is not 0."""
        status = self._run(first, second, out, None, 0)
        if status:
            raise self.explain(status)


# Called with Python's lock, which it releases itself.
_CALL_PYTHON: Any = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.py_object
)


class _Process:
    """The libraries of this process: of single kernels' the services of the first one serve all.

    A bundle keeps to its own: it may have been built by another version of this package.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first: ctypes.CDLL | None = None
        self.bundles: list[Callable[[int], object]] = []
        self.threads = 1

    def load_bundle(self, library: bytes, set_threads: str) -> ctypes.CDLL:
        """The library of a bundle, whose function `set_threads` is called as the number of threads changes."""
        with library_file(library) as path:
            loaded = ctypes.CDLL(path)
        with self.lock:
            self.bundles.append(loaded[set_threads])
            self.bundles[-1](self.threads)
        return loaded

    def load(self, library: bytes) -> ctypes.CDLL:
        with library_file(library) as path:
            loaded = ctypes.CDLL(path)
        loaded.tvmconvgrad_error.restype = ctypes.c_char_p
        loaded.tvmconvgrad_services.restype = ctypes.c_void_p
        loaded.tvmconvgrad_use.argtypes = [ctypes.c_void_p]
        with self.lock:
            if self.first is None:
                loaded.tvmconvgrad_set_threads(self.threads)
                self.first = loaded
            loaded.tvmconvgrad_use(self.first.tvmconvgrad_services())
        return loaded

    def set_threads(self, count: int) -> None:
        with self.lock:
            self.threads = count
            if self.first is not None:
                self.first.tvmconvgrad_set_threads(count)
            for set_threads in self.bundles:
                set_threads(count)


_process = _Process()
set_threads = _process.set_threads
load_bundle = _process.load_bundle


def load_function(library: bytes, problem: Problem) -> Function:
    """The function of a built kernel."""
    loaded = _process.load(library)
    loaded.tvmconvgrad_set_layout(ctypes.byref(layout_of(problem)))
    return Function(loaded, "tvmconvgrad", "tvmconvgrad_run", functools.partial(_explain, loaded))


def _explain(library: ctypes.CDLL, status: int) -> Exception:
    """Why the last call of this thread failed."""
    text = bytes(library.tvmconvgrad_error()).decode(errors="replace")
    library.tvmconvgrad_clear_error()
    return RuntimeError(text) if text else MemoryError("no memory for the workspace of the kernel")
