"""DLPack's capsules made by hand, right ones and others: what no library of today gives."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.support.cases.convolution import Array

READ_ONLY, IS_COPIED = 1, 2
CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32)}
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_held: list[Any] = []  # what capsules point at: they have no destructors


class DLTensor(ctypes.Structure):
    """As dlpack.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """DLManagedTensor, of version 0."""

    _fields_ = (("tensor", DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def numbers(values: Any) -> Any:
    """The address of int64s that stay."""
    _held.append((ctypes.c_int64 * len(values))(*values))
    return ctypes.addressof(_held[-1])


def capsule(
    array: Array, *, version: tuple[int, int] | None = (1, 0), flags: int = 0, name: bytes = b"", **facts: Any
) -> Any:
    """A capsule of an array's memory; `facts` are fields that are other than they should be."""
    code, bits = CODES[array.dtype.name]
    fields = {
        "data": array.ctypes.data,
        "device_type": 1,
        "ndim": array.ndim,
        "code": code,
        "bits": bits,
        "lanes": 1,
        "shape": numbers(array.shape),
        "strides": numbers([stride // array.itemsize for stride in array.strides]),
    }
    tensor = DLTensor(**{**fields, **facts})
    managed = Managed(tensor) if version is None else Versioned(*version, None, None, flags, tensor)
    _held.append((array, managed))
    usual = b"dltensor" if version is None else b"dltensor_versioned"
    _held.append(name or usual)
    return _new(ctypes.addressof(managed), _held[-1], None)


class Producer:
    """A tensor of which one knows nothing but a capsule, and what it was asked for with."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0), **how: Any) -> None:
        self.array, self.device, self.how = array, device, how
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return capsule(self.array, **self.how)


def huge(*values: int) -> int:
    """The address of some numbers, for `shape` or `strides`."""
    return int(numbers(np.array(values, np.int64).tolist()))
