"""Tensors in and out: what a caller passes, checked, and in a form that a kernel takes.

A kernel takes dense row-major memory of elements at natural alignment. NumPy arrays and PyTorch tensors of that form
are passed as they are; whatever else offers its memory through DLPack is seen through a NumPy array on the same
memory. Only what is strided or misaligned is copied.
"""

from __future__ import annotations

import ctypes
import sys
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm_ffi

from tvmconvgrad.spec import parse_dtype

Shape = tuple[int, ...]
Array = npt.NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_CPU_DEVICES = (1, 3, 11, 13)  # DLPack: CPU, and host memory that CUDA, ROCm or CUDA-managed memory made reachable


class Tensor(NamedTuple):
    """A caller's tensor as it was understood: `value` a NumPy array, or a PyTorch tensor if `is_torch`."""

    value: Any
    shape: Shape
    dtype: str
    is_torch: bool


def understand(name: str, value: Any) -> Tensor:
    """Look at a caller's tensor; raises TypeError or ValueError, which name it, for what no kernel can take."""
    if type(value) is np.ndarray:
        return Tensor(value, value.shape, _dtype(name, value.dtype), False)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _understand_torch(name, value, torch)
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        plain = value.view(np.ndarray)
        return Tensor(plain, plain.shape, _dtype(name, plain.dtype), False)
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        kind = type(value).__name__
        raise TypeError(f"{name}: a {kind} is no tensor, expected a NumPy array or an object with __dlpack__")
    return _understand_dlpack(name, value)


def native(tensor: Tensor) -> Any:
    """The tensor in the form that a kernel takes, a copy only where its memory is strided or misaligned."""
    value = tensor.value
    if tensor.is_torch:
        value = value.detach().contiguous().resolve_neg()
        return value if value.data_ptr() % value.element_size() == 0 else value.clone()
    flags = value.flags
    if not (flags.c_contiguous and flags.aligned):
        value = np.array(value, order="C")
    elif not flags.writeable:
        value = np.asarray(_Memory(value, value.shape, value.dtype, None, value.ctypes.data)).view(value.dtype)
    return _bf16_pointer(value) if tensor.dtype == "bf16" else value


def is_native(tensor: Tensor) -> bool:
    """Whether a kernel can write its result into this very memory."""
    if tensor.is_torch:
        value = tensor.value
        return bool(value.is_contiguous() and not value.is_neg() and value.data_ptr() % value.element_size() == 0)
    flags = tensor.value.flags
    return bool(flags.c_contiguous and flags.aligned)


def new_like(tensor: Tensor, shape: Shape, dtype: str) -> Tensor:
    """A new dense tensor of the kind that the caller uses; its contents are undefined."""
    if tensor.is_torch:
        torch = sys.modules["torch"]
        value = torch.empty(shape, dtype=tensor.value.dtype)
        return Tensor(value, shape, dtype, True)
    return Tensor(np.empty(shape, NUMPY_DTYPES[dtype]), shape, dtype, False)


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy elements between tensors of the same shape, of either kind."""
    if target.is_torch:
        torch = sys.modules["torch"]
        value = source.value if source.is_torch else torch.from_dlpack(source.value)
        target.value.detach().copy_(value)
    else:
        target.value[...] = source.value if not source.is_torch else _view_of_dlpack("out", source.value)


def fill_zero(tensor: Tensor) -> None:
    """Set all elements to zero."""
    if tensor.is_torch:
        tensor.value.detach().zero_()
    else:
        tensor.value[...] = 0


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory of two tensors may have bytes in common; their extents are compared, not their elements."""
    (begin, end), (other_begin, other_end) = _extent(one), _extent(other)
    return begin < other_end and other_begin < end


def check_writable(name: str, tensor: Tensor) -> None:
    """Raise ValueError for a result tensor that must not be written."""
    if tensor.is_torch:
        if tensor.value.requires_grad and tensor.value.is_leaf and sys.modules["torch"].is_grad_enabled():
            raise ValueError(f"{name}: requires grad, and autograd does not see what a kernel writes; pass out.detach()")
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.value.stride(), tensor.shape)):
            raise ValueError(f"{name}: several elements share one place in memory (stride 0)")
    elif not tensor.value.flags.writeable:
        raise ValueError(f"{name}: is read-only")


def _dtype(name: str, dtype: Any) -> str:
    try:
        return parse_dtype(dtype)
    except ValueError:
        raise ValueError(f"{name}: dtype {dtype} is not supported, expected f32, f16 or bf16") from None


def _understand_torch(name: str, value: Any, torch: Any) -> Tensor:
    if value.layout is not torch.strided:
        raise TypeError(f"{name}: a tensor of layout {value.layout} has no dense memory, expected torch.strided")
    if value.device.type != "cpu":
        raise ValueError(f"{name}: is on device {value.device}, expected the CPU, for which the kernel is")
    return Tensor(value, tuple(value.shape), _dtype(name, value.dtype), True)


def _understand_dlpack(name: str, value: Any) -> Tensor:
    device = value.__dlpack_device__()
    if int(device[0]) not in _CPU_DEVICES:
        raise ValueError(f"{name}: is on DLPack device {tuple(map(int, device))}, expected the CPU, (1, 0)")
    view = _view_of_dlpack(name, value)
    return Tensor(view, view.shape, _dtype(name, view.dtype), False)


class _Memory:
    """Somebody's memory with a shape, for NumPy; `owner` lives as long as an array sees it."""

    def __init__(self, owner: Any, shape: Shape, dtype: np.dtype[Any], strides: Shape | None, address: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": f"|V{dtype.itemsize}" if dtype.kind == "V" else dtype.str,
            "strides": strides,
            "data": (address, False),
        }


def _view_of_dlpack(name: str, value: Any) -> Array:
    """A NumPy array on the memory of a DLPack tensor; NumPy's own from_dlpack knows no bf16."""
    try:
        tensor = tvm_ffi.from_dlpack(value.detach() if hasattr(value, "detach") else value)
    except Exception as reason:
        raise ValueError(f"{name}: a {type(value).__name__} cannot be read through DLPack: {reason}") from reason
    dtype = NUMPY_DTYPES[_dtype(name, str(tensor.dtype))]
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    memory = _Memory(tensor, tuple(tensor.shape), dtype, strides, tensor.data_ptr())
    return np.asarray(memory).view(dtype)


def _extent(tensor: Tensor) -> tuple[int, int]:
    if prod(tensor.shape) == 0:
        return (0, 0)
    if tensor.is_torch:
        value = tensor.value
        span = sum((size - 1) * stride for size, stride in zip(tensor.shape, value.stride())) + 1
        return value.data_ptr(), value.data_ptr() + span * value.element_size()
    low, high = np.lib.array_utils.byte_bounds(tensor.value)
    return int(low), int(high)


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor, for the one type that NumPy does not export."""

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


class _Pointer(ctypes.c_void_p):
    """The address of a DLTensor, which lives as long as the pointer."""

    tensor: _DLTensor
    array: Array


def _bf16_pointer(value: Array) -> _Pointer:
    shape = (ctypes.c_int64 * value.ndim)(*value.shape)
    tensor = _DLTensor(value.ctypes.data, 1, 0, value.ndim, 4, 16, 1, shape, None, 0)
    pointer = _Pointer(ctypes.addressof(tensor))
    pointer.tensor, pointer.array = tensor, value
    return pointer
