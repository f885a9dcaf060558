"""Memory that a kernel takes, and what a call does with tensors of one library.

A kernel takes dense row-major memory of elements at natural alignment. Tensors of that form are passed as they are;
what is strided or misaligned is copied.
"""

# ruff: noqa: D102 -- `Kind` says what its methods do

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tvmconvgrad.common import process
from tvmconvgrad.spec import parse_dtype

Shape = tuple[int, ...]


class WrongDevice(ValueError):
    """A tensor is on another device than the kernel is for."""


class _Dtypes(dict[str, np.dtype[Any]]):
    """NumPy's types by our names; the package that has bf16 is imported when that is asked for."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        if name != "bf16":
            raise KeyError(name)
        with process.lock:
            import ml_dtypes

        self[name] = np.dtype(ml_dtypes.bfloat16)
        return self[name]


CACHE_LINE = 64
"""Bytes."""

MANY_ELEMENTS = 1024
"""A result of fewer is not aligned: that takes several times as long as to allocate it."""

NUMPY_DTYPES = _Dtypes(f32=np.dtype(np.float32), f16=np.dtype(np.float16))


class Kind(Protocol):
    """What a kernel's call does with tensors of one library."""

    def misfit(self, value: Any) -> object | None:
        """Why a kernel cannot read or write this very memory, of which str() is "it is ..."; None where it can."""

    def dense_copy(self, value: Any) -> Any:
        """A copy of a tensor that does not fit, which does."""

    def empty(self, shape: Shape, dtype: str) -> Any:
        """A new dense tensor; its contents are undefined."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy the elements of a tensor of the same kind."""

    def fill_zero(self, value: Any) -> None:
        """Set all elements to zero."""

    def extent(self, value: Any) -> tuple[int, int]:
        """The addresses between which the elements of a tensor lie."""

    def mark_written(self, value: Any) -> None:
        """Tell the library that a tensor of the caller's is about to be written, where it wants to know."""

    def finished(self, value: Any) -> Any:
        """What a caller gets of a new tensor that holds the result."""


class Tensor(NamedTuple):
    """A caller's tensor as it was understood: `value` belongs to the library of `kind`."""

    value: Any
    shape: Shape
    dtype: str
    kind: Kind


def aligned_empty(shape: Shape, dtype: np.dtype[Any]) -> Any:
    """An array that begins with a cache line, so that kernels write a large result by non-temporal stores.

    NumPy's own arrays begin 16 bytes behind one. See tir/passes/non_temporal.py.
    """
    size = prod(shape) * dtype.itemsize
    memory: Any = np.empty(size + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    return memory[begin : begin + size].view(dtype).reshape(shape)


class Strided(NamedTuple):
    """Memory that is not dense; strides of NumPy are in bytes, PyTorch's in elements. Words are made when asked for."""

    shape: Shape
    strides: Shape

    def __str__(self) -> str:
        steps = [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]
        what = "reversed" if min(steps) < 0 else "broadcast" if 0 in steps else "not contiguous"
        return f"it is {what}: shape {tuple(self.shape)}, strides {tuple(self.strides)}"


class Unaligned(NamedTuple):
    """Memory whose address is no multiple of `alignment` bytes."""

    alignment: int

    def __str__(self) -> str:
        return f"it is not aligned to {self.alignment} bytes"


class UnseenKind:
    """What is the same for most libraries: they need not know of writes, and a caller gets a new tensor as it is."""

    def mark_written(self, value: Any) -> None:
        pass

    def finished(self, value: Any) -> Any:
        return value


class NumpyKind(UnseenKind):
    """NumPy's arrays."""

    def misfit(self, value: Any) -> object | None:
        if not value.flags.c_contiguous:
            return Strided(value.shape, value.strides)
        return None if value.flags.aligned else Unaligned(value.itemsize)

    def dense_copy(self, value: Any) -> Any:
        return np.array(value, order="C")

    def empty(self, shape: Shape, dtype: str) -> Any:
        few = prod(shape) < MANY_ELEMENTS
        return (np.empty if few else aligned_empty)(shape, NUMPY_DTYPES[dtype])

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def fill_zero(self, value: Any) -> None:
        value[...] = 0

    def extent(self, value: Any) -> tuple[int, int]:
        low, high = np.lib.array_utils.byte_bounds(value)
        return int(low), int(high)


def check_places(name: str, shape: Shape, strides: Shape, width: int) -> None:
    """Raise ValueError where elements of a result share memory; strides and an element's width are in one unit."""
    if 0 in shape:
        return
    axes = sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1)
    reach = [(size - 1) * stride for stride, size in axes]
    if all(stride >= sum(reach[:axis]) + width for axis, (stride, _) in enumerate(axes)):  # each steps over those below
        return
    if all(stride for stride, _ in axes):
        places = np.zeros(1, np.int64)
        for stride, size in axes:  # interleaved, or shared: only the places of all elements tell
            places = np.add.outer(places, np.arange(size) * stride).ravel()
        if np.diff(np.sort(places)).min() >= width:
            return
    what = "a stride 0" if 0 in dict(axes) else f"strides {tuple(strides)}"
    raise ValueError(f"{name}: several elements share one place in memory ({what})")


def dtype_of(name: str, dtype: Any) -> str:
    """Our name of a library's type. ValueError, which names the tensor."""
    try:
        return parse_dtype(dtype)
    except ValueError:
        order = " in foreign byte order" if getattr(dtype, "isnative", True) is False else ""
        raise ValueError(f"{name}: dtype {dtype}{order} is not supported, expected f32, f16 or bf16") from None
