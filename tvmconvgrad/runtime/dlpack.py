"""The memory of a foreign tensor, through DLPack. NumPy's own from_dlpack knows no bf16, and believes every capsule."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from tvmconvgrad.runtime.native import DL_DTYPES, DLTensor

# DLPack's devices whose memory the CPU can read: CPU, pinned for CUDA, pinned for ROCm, managed by CUDA.
_CPU_DEVICES = (1, 3, 11, 13)
_CUDA_DEVICES = (2, 13)
_READ_ONLY, _IS_COPIED = 1, 2
_VERSION = (1, 0)
_MOST_AXES = 64  # NumPy's bound
_ADDRESSES = 1 << 63
capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_is: Any = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


class Expected(NamedTuple):
    """The types that a tensor may have, by DLPack's code and bits, and how a message says so."""

    dtypes: dict[tuple[int, int], str]
    words: str


FLOATS = Expected({numbers: dtype for dtype, numbers in DL_DTYPES.items()}, "f32, f16 or bf16")
S32 = Expected({(0, 32): "s32"}, "s32")


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
    memory on a GPU, ready for what is launched on that stream. ValueError, which names the tensor, for what is no such
    memory, and, where `writes`, for what must not be written or is a copy, in which a result would be lost.
    """

    def __init__(
        self, name: str, value: Any, *, writes: bool = False, stream: int | None = None, expected: Expected = FLOATS
    ) -> None:
        self.capsule = _export(name, value, stream, writes)
        tensor, flags = _read(name, self.capsule)
        if writes:
            _check_written(name, value, flags)
        self.dtype = _dtype(name, tensor, expected)
        _check_place(name, tensor, _CPU_DEVICES if stream is None else _CUDA_DEVICES)
        self.width = tensor.bits // 8
        self.address: int = (tensor.data or 0) + tensor.byte_offset
        self.shape = _shape(name, tensor)
        self.bytes = prod(self.shape) * self.width
        self._strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
        self._read_only = not writes
        self._check_extent(name, bool(tensor.data))

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie one after the other, in the order of the axes."""
        steps = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        axes = zip(self.shape, self._strides or steps, steps)
        return self.bytes == 0 or all(size == 1 or stride == step for size, stride, step in axes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"|V{self.width}",
            "strides": None if self._strides is None else tuple(stride * self.width for stride in self._strides),
            "data": (self.address, self._read_only),
        }

    def _check_extent(self, name: str, has_data: bool) -> None:
        if self.bytes == 0:
            return
        if not has_data:
            raise ValueError(f"{name}: its DLPack capsule has no memory for the {prod(self.shape)} elements")
        reach = [(size - 1) * stride * self.width for size, stride in zip(self.shape, self._strides or ())]
        begin = self.address + sum(min(each, 0) for each in reach)
        end = self.address + max(sum(max(each, 0) for each in reach), self.bytes if self._strides is None else 0)
        if begin < 0 or end + self.width >= _ADDRESSES:
            what = f"shape {self.shape} and strides {self._strides}"
            raise ValueError(f"{name}: its DLPack capsule has {what}, which lead out of memory")


def _export(name: str, value: Any, stream: int | None, writes: bool) -> object:
    kind = type(value).__name__
    try:
        device = tuple(int(part) for part in value.__dlpack_device__())
        if stream is not None:
            return _capsule(value, writes, stream=stream)
        if device[0] in _CPU_DEVICES:
            return _capsule(value, writes)
    except Exception as reason:  # somebody else's code: it may raise anything
        raise ValueError(f"{name}: a {kind} cannot be read through DLPack: {reason}") from reason
    raise ValueError(f"{name}: is on DLPack device {device}, expected the CPU, (1, 0)")


def _capsule(value: Any, writes: bool, **options: Any) -> object:
    refused = None
    for request in _requests(writes):
        try:
            return value.__dlpack__(**request, **options)
        except TypeError as reason:  # written before DLPack 1.0, or to a part of it
            refused = reason
    raise refused or TypeError("no __dlpack__")


def _requests(writes: bool) -> Iterator[dict[str, Any]]:
    """What a capsule is asked for with: the most first. A copy of an input is as good as the input."""
    if writes:
        yield {"max_version": _VERSION, "copy": False}
    yield {"max_version": _VERSION}
    yield {}


def _read(name: str, capsule: object) -> tuple[DLTensor, int | None]:
    """The tensor of a capsule, and its flags, which a capsule of version 0 lacks."""
    if _capsule_is(capsule, b"dltensor"):
        return DLTensor.from_address(capsule_pointer(capsule, b"dltensor")), None
    if not _capsule_is(capsule, b"dltensor_versioned"):
        raise ValueError(f"{name}: its __dlpack__ gave {capsule!r}, expected an unused capsule of a DLPack tensor")
    versioned = _Versioned.from_address(capsule_pointer(capsule, b"dltensor_versioned"))
    if versioned.major != _VERSION[0]:
        what = f"of DLPack's version {versioned.major}.{versioned.minor}"
        raise ValueError(f"{name}: its capsule is {what}, expected version {_VERSION[0]} or older")
    return versioned.tensor, int(versioned.flags)


def _check_written(name: str, value: Any, flags: int | None) -> None:
    if flags is None:
        what = f"a {type(value).__name__} offers DLPack's version 0 alone, which does not say that it may be written"
        raise ValueError(f"{name}: is read-only: {what}, expected version 1")
    if flags & _READ_ONLY:
        raise ValueError(f"{name}: is read-only")
    if flags & _IS_COPIED:
        what = f"a {type(value).__name__} offers a copy through DLPack"
        raise ValueError(f"{name}: {what}, in which the result would be lost, expected its own memory")


def _dtype(name: str, tensor: DLTensor, expected: Expected) -> str:
    dtype = expected.dtypes.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        what = f"DLPack's type code {tensor.code} of {tensor.bits} bits in {tensor.lanes} lanes"
        raise ValueError(f"{name}: {what} is not supported, expected {expected.words}")
    return dtype


def _check_place(name: str, tensor: DLTensor, devices: tuple[int, ...]) -> None:
    if tensor.device_type not in devices:
        what = f"device type {tensor.device_type}, which its __dlpack_device__ does not tell"
        raise ValueError(f"{name}: its DLPack capsule has {what}, expected {' or '.join(map(str, devices))}")


def _shape(name: str, tensor: DLTensor) -> tuple[int, ...]:
    """The shape of a tensor; nothing is read that the capsule does not have."""
    if not 0 <= tensor.ndim <= _MOST_AXES:
        raise ValueError(f"{name}: its DLPack capsule has {tensor.ndim} axes, expected 0 to {_MOST_AXES}")
    if tensor.ndim and not tensor.shape:
        raise ValueError(f"{name}: its DLPack capsule has {tensor.ndim} axes and no shape")
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    if any(size < 0 for size in shape):
        raise ValueError(f"{name}: its DLPack capsule has shape {shape}, expected no negative sizes")
    return shape
