"""The libraries of built kernels in this process, called by C's rules; neither TVM nor its runtime is loaded.

What a library needs of a runtime is in csrc/services.c, how it calls its kernel in csrc/calling.c.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from tvmconvgrad.common import process
from tvmconvgrad.files.library_file import library_file
from tvmconvgrad.machines.targets import Target
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


PYTHON_SYMBOL = "python_method_4"
"""How the name of csrc/python.c's function ends. The number changes with what it takes: a bundle may be older."""

OPENMP_SYMBOL = "run_by_openmp_2"
"""The same of csrc/openmp.c's."""

_TENSORS, _AXES = 4, 5


class Layout(ctypes.Structure):
    """Layout of csrc/calling.c: the types and shapes of two inputs, the result, and maybe a bias or its
    gradient."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("code", ctypes.c_uint8 * _TENSORS),
        ("bits", ctypes.c_uint8 * _TENSORS),
        ("ndim", ctypes.c_int32 * _TENSORS),
        ("shape", ctypes.c_int64 * _AXES * _TENSORS),
        ("bytes", ctypes.c_uint64 * _TENSORS),
        ("reads_bias", ctypes.c_int32),
    )


def layout_of(problem: Problem) -> Layout:
    """What C is told of a problem's tensors."""
    layout = Layout(len(problem.arguments), reads_bias=problem.epilogue.bias)
    for place, (shape, dtype) in enumerate(problem.arguments):
        code, bits = DL_DTYPES[dtype]
        layout.code[place], layout.bits[place], layout.ndim[place] = code, bits, len(shape)
        layout.shape[place][: len(shape)] = shape
        layout.bytes[place] = prod(shape) * bits // 8
    return layout


class Function:
    """A kernel's function. It is called with the addresses of its tensors and releases Python's lock while it runs.

    `name` is what the library's functions begin with, `address` the kernel's; `explain` makes an exception of a status
    that is not 0. `python_method` returns the address of a method for Python (runtime/python_calls.py), and is None if
    an older version of this package made the library. `run_by_openmp` runs on the library's own threads if the library
    is too old to take others.
    """

    # Functions that ctypes finds by a name refer to themselves, and keep their library until garbage is collected.

    def __init__(self, library: ctypes.CDLL, name: str, address: int, explain: Callable[[int], Exception]) -> None:
        python = f"{name}_{PYTHON_SYMBOL}"
        self.library = library
        self.explain = explain
        self.address = address
        self._run = _RUN(self.address)
        self.python_method = _METHOD(_address(library, python)) if _has(library, python) else None
        openmp = f"{name}_{OPENMP_SYMBOL}"
        self._run_by_openmp = _RUN_BY_OPENMP(_address(library, openmp)) if _has(library, openmp) else None

    def __call__(self, first: int, second: int, out: int, bias: int = 0) -> None:
        """Run on dense tensors at these addresses; raises what `explain` makes of a status that is not 0."""
        status = self._run(first, second, out, bias, None, 0)
        if status:
            raise self.explain(status)

    def run_by_openmp(self, openmp: int, threads: int, first: int, second: int, out: int, bias: int = 0) -> None:
        """The same on this number of threads of the OpenMP runtime whose functions are at the address `openmp`."""
        if self._run_by_openmp is None:
            self(first, second, out, bias)
        elif status := self._run_by_openmp(openmp, threads, self.address, first, second, out, bias):
            raise self.explain(status)


def _address(library: ctypes.CDLL, name: str) -> int:
    """Where a library has a function; AttributeError where it has none of this name."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError as reason:
        raise AttributeError(str(reason)) from None


def _has(library: ctypes.CDLL, name: str) -> bool:
    try:
        return _address(library, name) != 0
    except AttributeError:
        return False


_RUN: Any = ctypes.CFUNCTYPE(ctypes.c_int, *(5 * [ctypes.c_void_p]), ctypes.c_size_t)
_RUN_BY_OPENMP: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *(5 * [ctypes.c_void_p]))
_READ: Any = ctypes.CFUNCTYPE(ctypes.c_void_p)
_TAKE: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CLOSE: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_COUNT: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_METHOD: Any = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_AT: Any = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)


class _Libraries:
    """The libraries of this process: of single kernels' the services of the first one serve all.

    So the first one stays, and its threads run the tasks of others, which a call waits for. Any other one to which
    nobody refers any more is unloaded when the next one is loaded. A bundle keeps to its own services: it may have been
    built by another version of this package.
    """

    def __init__(self) -> None:
        self.first: ctypes.CDLL | None = None
        self.bundles: list[Callable[[int], object]] = []
        self.threads = 1
        self._unused: deque[int] = deque()
        self._close = _CLOSE(_address(ctypes.CDLL(None), "dlclose"))

    def load_bundle(self, library: bytes, set_threads: str) -> ctypes.CDLL:
        """The library of a bundle, whose function `set_threads` is called as the number of threads changes."""
        with process.lock:
            with library_file(library) as path:
                loaded = ctypes.CDLL(path)
            self.bundles.append(_COUNT(_address(loaded, set_threads)))
            self.bundles[-1](self.threads)
        return loaded

    def load(self, library: bytes) -> ctypes.CDLL:
        """The library of a single kernel."""
        with process.lock:  # a child that is forked while the system's loader is at work could load no more
            self._close_unused()
            with library_file(library) as path:
                loaded = ctypes.CDLL(path)
            if self.first is None:
                self.first = loaded
                self._set_threads_of_first()
            else:
                # Only noted: who drops the last reference may be anywhere, and must not wait for a lock.
                weakref.finalize(loaded, self._unused.append, loaded._handle).atexit = False
            services = _READ(_address(self.first, "tvmconvgrad_services"))()
            _TAKE(_address(loaded, "tvmconvgrad_use"))(services)
        return loaded

    def set_threads(self, count: int) -> None:
        """Set the number of threads that a call uses from now on."""
        with process.lock:
            self.threads = count
            if self.first is not None:
                self._set_threads_of_first()
            for set_threads in self.bundles:
                set_threads(count)

    def _set_threads_of_first(self) -> None:
        assert self.first is not None
        _COUNT(_address(self.first, "tvmconvgrad_set_threads"))(self.threads)

    def _close_unused(self) -> None:
        while self._unused:
            self._close(self._unused.popleft())


_libraries = _Libraries()
set_threads = _libraries.set_threads
load_bundle = _libraries.load_bundle


def load_function(library: bytes, problem: Problem) -> Function:
    """The function of a built kernel."""
    loaded = _libraries.load(library)
    layout = layout_of(problem)
    _TAKE(_address(loaded, "tvmconvgrad_set_layout"))(ctypes.byref(layout))
    return Function(loaded, "tvmconvgrad", _address(loaded, "tvmconvgrad_run"), _explain)


class _BundledKernel(ctypes.Structure):
    """The struct NAME_kernel of a bundle's header (deploy/templates/bundle.h.jinja)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("bytes", ctypes.c_size_t * _TENSORS),
        ("workspace_bytes", ctypes.c_size_t),
        ("workspace_bytes_per_thread", ctypes.c_size_t),
        ("run", ctypes.c_void_p),
    )


def bundled_function(
    library: ctypes.CDLL, name: str, place: int, kernel: str, explain: Callable[[int], Exception]
) -> Function:
    """The function of the kernel at a place in a bundle's library; AttributeError where it has another one, or none."""
    address = _AT(_address(library, f"{name}_get_kernel"))(place)
    found = _BundledKernel.from_address(address) if address else None
    if found is None or found.name != kernel.encode():
        raise AttributeError(f"its kernel {place} is not {kernel}")
    return Function(library, name, found.run, explain)


def load_kernel(code: bytes, facts: Mapping[str, Any], problem: Problem, target: Target) -> Function:
    """The function of a kernel of the cache, for its backend (machines/backends.py)."""
    return load_function(code, problem)


def _explain(status: int) -> Exception:
    """A kernel fails for one reason: its caller has checked the arguments."""
    return MemoryError("no memory for the workspace of the kernel")
