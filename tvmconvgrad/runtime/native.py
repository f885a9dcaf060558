"""The libraries of built kernels in this process, called by C's rules; neither TVM nor its runtime is loaded.

A library's function follows TVM's calling convention for packed functions: tagged values (TVMFFIAny), among them
pointers to DLPack's DLTensor. What it needs of a runtime is in compiling/services.c.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

from tvmconvgrad.compiling.private_file import library_file
from tvmconvgrad.spec import Problem

_DLTENSOR_POINTER = 7  # TVMFFITypeIndex
_CPU = 1  # DLDeviceType
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


class _Any(ctypes.Structure):
    """TVMFFIAny, as far as pointers and nothing go."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("pointer", ctypes.c_void_p))


class _Frame:
    """The memory of one call: what the function is passed, with the tensors' addresses left to be filled in."""

    def __init__(self, shapes: Sequence[Sequence[int]], dtype: str) -> None:
        self.first, self.second, self.out = tensors = [_tensor(shape, dtype) for shape in shapes]
        self.arguments = (_Any * 3)(*(_Any(_DLTENSOR_POINTER, 0, ctypes.addressof(tensor)) for tensor in tensors))
        self.result = _Any()
        self.pointers = ctypes.addressof(self.arguments), ctypes.addressof(self.result)


class Function:
    """A kernel's function. It is called with the addresses of its tensors and releases Python's lock while it runs."""

    def __init__(self, library: ctypes.CDLL, problem: Problem) -> None:
        self._library = library
        self._problem = problem
        self._main = library["__tvm_ffi_main"]
        self._main.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        self._idle: list[_Frame] = []  # a call takes one out: calls of several threads, and nested ones, have their own

    def __call__(self, first: int, second: int, out: int) -> None:
        """Run on dense tensors at these addresses. MemoryError without memory for the workspace."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = _Frame((*self._problem.input_shapes, self._problem.output_shape), self._problem.dtype)
        frame.first.data, frame.second.data, frame.out.data = first, second, out
        arguments, result = frame.pointers
        if self._main(None, arguments, 3, result):
            self._raise()
        self._idle.append(frame)

    def _raise(self) -> None:
        text = bytes(self._library.tvmconvgrad_error()).decode(errors="replace")
        self._library.tvmconvgrad_clear_error()
        if text:
            raise RuntimeError(text)
        raise MemoryError("no memory for the workspace of the kernel")


class BundledFunction:
    """A bundle's function of a kernel; called like Function."""

    def __init__(self, library: ctypes.CDLL, name: str, explain: Callable[[int], Exception]) -> None:
        self._library = library
        self._function = library[name]
        self._function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._explain = explain

    def __call__(self, first: int, second: int, out: int) -> None:
        """Run on dense tensors at these addresses; raises what `explain` makes of a status that is not 0."""
        status = self._function(first, second, out, None, 0)
        if status:
            raise self._explain(status)


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
            loaded = ctypes.CDLL(str(path))
        with self.lock:
            self.bundles.append(loaded[set_threads])
            self.bundles[-1](self.threads)
        return loaded

    def load(self, library: bytes) -> ctypes.CDLL:
        with library_file(library) as path:
            loaded = ctypes.CDLL(str(path))
        loaded.tvmconvgrad_error.restype = ctypes.c_char_p
        loaded.tvmconvgrad_services.restype = ctypes.c_void_p
        loaded.tvmconvgrad_use.argtypes = [ctypes.c_void_p]
        with self.lock:
            if self.first is None:
                self.first = loaded
                self.first.tvmconvgrad_set_threads(self.threads)
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
    return Function(_process.load(library), problem)


def _tensor(shape: Sequence[int], dtype: str) -> DLTensor:
    sizes = (ctypes.c_int64 * len(shape))(*shape)  # ctypes keeps it alive with the tensor
    return DLTensor(None, _CPU, 0, len(shape), *DL_DTYPES[dtype], 1, sizes, None, 0)
