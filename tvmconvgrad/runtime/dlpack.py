"""The memory of a foreign tensor, through DLPack. NumPy's own from_dlpack knows no bf16."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

from tvmconvgrad.runtime.native import DL_DTYPES, DLTensor
from tvmconvgrad.spec.dtypes import ITEM_BYTES

# DLPack's devices whose memory the CPU can read: CPU, pinned for CUDA, pinned for ROCm, managed by CUDA.
_CPU_DEVICES = (1, 3, 11, 13)
_DTYPES = {(code, bits, 1): dtype for dtype, (code, bits) in DL_DTYPES.items()}
_READ_ONLY = 1
capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_is: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the older DLManagedTensor begins with its DLTensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class Memory:
    """Memory of elements of `dtype`. Of the CPU's NumPy can make an array, by __array_interface__, of bytes as wide.

    Holds the capsule, unused: it returns the memory to its owner when the last array is gone. With `stream` it is
    memory on a GPU, ready for what is launched on that stream.
    """

    def __init__(self, name: str, value: Any, stream: int | None = None) -> None:
        self.capsule = _export(name, value, stream)
        tensor, flags = _read(name, self.capsule)
        dtype = _DTYPES.get((tensor.code, tensor.bits, tensor.lanes))
        if dtype is None:
            what = f"DLPack's type code {tensor.code} of {tensor.bits} bits in {tensor.lanes} lanes"
            raise ValueError(f"{name}: {what} is not supported, expected f32, f16 or bf16")
        self.dtype = dtype
        self.read_only = bool(flags & _READ_ONLY)
        self.address: int = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.bytes = prod(self.shape) * tensor.bits // 8
        self._strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie one after the other, in the order of the axes."""
        steps = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        axes = zip(self.shape, self._strides or steps, steps)
        return self.bytes == 0 or all(size == 1 or stride == step for size, stride, step in axes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        width = ITEM_BYTES[self.dtype]
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"|V{width}",
            "strides": None if self._strides is None else tuple(stride * width for stride in self._strides),
            "data": (self.address, self.read_only),
        }


def _export(name: str, value: Any, stream: int | None) -> object:
    kind = type(value).__name__
    try:
        device = tuple(int(part) for part in value.__dlpack_device__())
        if stream is not None:
            return _capsule(value, stream=stream)
        if device[0] in _CPU_DEVICES:
            return _capsule(value)
    except Exception as reason:  # somebody else's code: it may raise anything
        raise ValueError(f"{name}: a {kind} cannot be read through DLPack: {reason}") from reason
    raise ValueError(f"{name}: is on DLPack device {device}, expected the CPU, (1, 0)")


def _capsule(value: Any, **options: Any) -> object:
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # written before DLPack 1.0
        return value.__dlpack__(**options)


def _read(name: str, capsule: object) -> tuple[DLTensor, int]:
    if _capsule_is(capsule, b"dltensor"):
        return DLTensor.from_address(capsule_pointer(capsule, b"dltensor")), 0
    if _capsule_is(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major == 1:
            return versioned.tensor, versioned.flags
    raise ValueError(f"{name}: its __dlpack__ gave {capsule!r}, expected a DLPack tensor of version 0 or 1")
