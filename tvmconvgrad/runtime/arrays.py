"""Tensors in and out: what a caller passes, checked, and in a form that a kernel takes.

A kernel takes dense row-major memory of elements at natural alignment. NumPy arrays and PyTorch tensors of that form
are passed as they are; whatever else offers its memory through DLPack is seen through a NumPy array on the same
memory. Only what is strided or misaligned is copied. What may not be read or written by somebody whom its library does
not see, such as autograd's, is refused.
"""

# ruff: noqa: D102 -- `Kind` says what its methods do

from __future__ import annotations

import sys
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from tvmconvgrad import process
from tvmconvgrad.runtime import dlpack
from tvmconvgrad.spec import parse_dtype
from tvmconvgrad.spec.values import show

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
    """An array that begins with a cache line: large results are then stored past the caches (compiling/streaming.py).
    NumPy's own begin 16 bytes behind one."""
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
    """Memory whose address is no multiple of so many bytes."""

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


NUMPY: Kind = NumpyKind()
_kinds: dict[type, Kind] = {np.ndarray: NUMPY}  # by exact type: what a subclass does to its methods is unknown


@process.forgets
def forget_kinds() -> None:
    """As if no other library's tensors than NumPy's had been met."""
    for met in [kind for kind in _kinds if kind is not np.ndarray]:
        del _kinds[met]


def known_kind(value: Any) -> Kind | None:
    """The kind of a plain array or tensor, of a library that has been met before."""
    return _kinds.get(type(value))


def understand(name: str, value: Any, *, writes: bool = False) -> Tensor:
    """Look at a caller's tensor; raises TypeError or ValueError, which name it, for what no kernel can take.

    With `writes` it is to receive a result.
    """
    masked = isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))  # np.ma would import it
    if isinstance(value, np.ndarray) and not masked:
        return _understand_array(name, value, writes)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _understand_torch(name, value, torch, writes)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, getattr(jax, "Array", ())):
        with process.lock:
            from tvmconvgrad.runtime import jax_arrays

        return jax_arrays.understand(name, value, jax, writes)
    if masked or isinstance(value, type) or not hasattr(value, "__dlpack__"):
        what = f"{show(value)} of type {type(value).__name__}"
        raise TypeError(f"{name}: {what} is no tensor, expected a NumPy array or an object with __dlpack__")
    memory = dlpack.Memory(name, value, writes=writes)
    return _understand_array(name, np.asarray(memory).view(NUMPY_DTYPES[memory.dtype]), writes)


def _understand_array(name: str, value: Any, writes: bool) -> Tensor:
    plain = np.ndarray.view(value, np.ndarray)
    if writes and not plain.flags.writeable:
        raise ValueError(f"{name}: is read-only")
    dtype = dtype_of(name, plain.dtype)
    if writes:
        check_places(name, plain.shape, plain.strides, plain.itemsize)
    return Tensor(plain, plain.shape, dtype, NUMPY)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory of two tensors may have bytes in common; their extents are compared, not their elements."""
    (begin, end), (other_begin, other_end) = (tensor.kind.extent(tensor.value) for tensor in (one, other))
    return begin < other_end and other_begin < end


def _understand_torch(name: str, value: Any, torch: Any, writes: bool) -> Tensor:
    with process.lock:
        from tvmconvgrad.runtime.torch_tensors import check

    check(name, value, writes=writes)
    return Tensor(value, tuple(value.shape), dtype_of(name, value.dtype), meet_torch(torch))


def meet_torch(torch: Any) -> Kind:
    """The kind of PyTorch's tensors on the CPU; from now on they, and those on GPUs, are known."""
    with process.lock:
        from tvmconvgrad.runtime.torch_tensors import torch_kind

    kind = _kinds.get(torch.Tensor)
    if kind is None:
        kind = torch_kind(torch)
        _kinds.update({torch.Tensor: kind, torch.nn.Parameter: kind})
    return kind


def understand_shape(name: str, value: Any) -> Any:
    """A caller's 1-D tensor of s32 as a NumPy array; raises TypeError or ValueError, which name it."""
    array: Any = value
    dtype = getattr(value, "dtype", None)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        with process.lock:
            from tvmconvgrad.runtime.torch_tensors import check

        check(name, value)
        array = array.numpy() if dtype == torch.int32 else None
    elif not isinstance(value, np.ndarray):
        memory = dlpack.Memory(name, value, expected=dlpack.S32)
        array = np.asarray(memory).view(np.int32)
    if array is None or array.dtype != np.int32 or array.ndim != 1:
        raise TypeError(f"{name}: a {value.ndim}-D tensor of {dtype}, expected a 1-D tensor of s32")
    return array


def dtype_of(name: str, dtype: Any) -> str:
    """Our name of a library's type. ValueError, which names the tensor."""
    try:
        return parse_dtype(dtype)
    except ValueError:
        order = " in foreign byte order" if getattr(dtype, "isnative", True) is False else ""
        raise ValueError(f"{name}: dtype {dtype}{order} is not supported, expected f32, f16 or bf16") from None
