"""Tensors on a GPU: PyTorch's, CuPy's, and whatever else offers its memory through DLPack.

The first two are read where they lie, and bring their stream and their allocator. What is strided or misaligned is
copied, by their library. Of any other library no stream is known: its tensors are asked for on the default one, and a
call that has any of them waits for its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from tvmconvgrad.runtime import arrays, dlpack
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, Kind, Shape, Tensor
from tvmconvgrad.runtime.cuda import driver
from tvmconvgrad.runtime.cuda.memory import GpuArray, Memory

ALIGNMENT = 16
"""Of tensors, in bytes: what one instruction moves. Memory that is not aligned to it ends the GPU's context."""
_CUDA = 2  # DLDeviceType


class GpuKind(Kind, Protocol):
    """What a call does with tensors of one library on one GPU."""

    gpu: int
    foreign: bool
    """Whether the library's stream is unknown."""

    def stream(self) -> int:
        """The stream that its library works on now."""

    def workspace(self, size: int) -> tuple[int, Any]:
        """The address of so many bytes on the GPU, and what holds them; they are free for what its library launches on
        the stream once that is dropped."""


def gpu_of(value: Any) -> int | None:
    """The number of the GPU that a tensor is on; None for whatever else."""
    if type(value) is np.ndarray:
        return None
    library = _library(value)
    if library is not None:
        return library.number(value)
    try:
        kind, number = (int(part) for part in value.__dlpack_device__())
    except Exception:  # somebody else's code: it may raise anything, and `understand` will tell
        return None
    return number if kind == _CUDA else None


def common(names: Sequence[str], values: Sequence[Any]) -> int | None:
    """The number of the GPU that tensors are on; None where they are on none. ValueError for tensors here and there."""
    found = [gpu_of(value) for value in values]
    for name, gpu in zip(names, found):
        if gpu != found[0]:
            raise ValueError(
                f"{name}: is on {_device(gpu)}, and {names[0]} on {_device(found[0])}, expected one device"
            )
    return found[0]


def _device(gpu: int | None) -> str:
    return "the CPU" if gpu is None else f"cuda:{gpu}"


def understand(name: str, value: Any) -> Tensor:
    """Look at a caller's tensor; raises TypeError or ValueError, which name it, for what no GPU's kernel can take."""
    gpu = gpu_of(value)
    if gpu is None:
        arrays.understand(name, value)  # what is no tensor at all
        raise ValueError(f"{name}: is on the CPU, expected an NVIDIA GPU, for which the kernel is")
    library = _library(value)
    return _foreign(name, value, gpu) if library is None else library.make(name, value, gpu)


class _Library(NamedTuple):
    """A library that is known: its module's name, its tensors' class, and what is done with a tensor."""

    module: str
    kind: str
    number: Callable[[Any], int | None]
    make: Callable[[str, Any, int], Tensor]


def _library(value: Any) -> _Library | None:
    """The one that a tensor is of; none is imported for that."""
    for library in _LIBRARIES:
        module = sys.modules.get(library.module)
        if module is not None and isinstance(value, getattr(module, library.kind, ())):
            return library
    return None


def _torch(name: str, value: Any, gpu: int) -> Tensor:
    from tvmconvgrad.runtime.torch_tensors import check

    torch = sys.modules["torch"]
    check(name, value, "cuda")
    arrays.meet_torch(torch)
    kind = _quick[value.device] = _kind(_TorchKind, torch, gpu)
    return Tensor(value, tuple(value.shape), arrays.dtype_of(name, value.dtype), kind)


def _cupy(name: str, value: Any, gpu: int) -> Tensor:
    kind = _kind(_CupyKind, sys.modules["cupy"], gpu)
    return Tensor(value, tuple(value.shape), arrays.dtype_of(name, value.dtype), kind)


def _own(name: str, value: Any, gpu: int) -> Tensor:
    return Tensor(value, value.shape, value.dtype, _kind(_OwnKind, None, gpu))


def _foreign(name: str, value: Any, gpu: int) -> Tensor:
    memory = dlpack.Memory(name, value, stream=driver.LEGACY_STREAM)
    if not memory.is_dense or memory.address % ALIGNMENT:
        what = f"rows without gaps, aligned to {ALIGNMENT} bytes"
        raise ValueError(f"{name}: a {type(value).__name__} on a GPU is taken as it is, and has not {what}")
    return Tensor(memory, memory.shape, memory.dtype, _kind(_ForeignKind, None, gpu))


def known_kind(value: Any) -> GpuKind | None:
    """The kind of a plain tensor of PyTorch's, on a GPU that has been met before."""
    return _quick.get(value.device) if _quick and arrays.known_kind(value) is not None else None


_quick: dict[Any, GpuKind] = {}  # by PyTorch's device
_kinds: dict[tuple[Callable[..., Any], int], GpuKind] = {}


def _kind(make: Callable[[Any, int], Any], library: Any, gpu: int) -> GpuKind:
    if (make, gpu) not in _kinds:
        _kinds[make, gpu] = make(library, gpu)
    return _kinds[make, gpu]


class _TorchKind:
    """PyTorch's tensors on one GPU."""

    foreign = False

    def __init__(self, torch: Any, gpu: int) -> None:
        from tvmconvgrad.runtime.torch_tensors import torch_kind

        self.torch, self.gpu = torch, gpu
        self.device = torch.device("cuda", gpu)
        same = torch_kind(torch)
        self.dtypes: dict[str, Any] = cast(Any, same).dtypes
        self.copy, self.fill_zero, self.extent = same.copy, same.fill_zero, same.extent
        self.check_writable = same.check_writable

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        if value.shape != shape or value.dtype is not self.dtypes[dtype] or value.layout is not self.torch.strided:
            return 0
        if (write and value.requires_grad) or not self.is_dense(value):
            return 0
        address: int = value.data_ptr()
        return address

    def dense(self, value: Any) -> Any:
        value = value.detach().contiguous().resolve_neg()
        return value if self.is_dense(value) else value.clone()

    def is_dense(self, value: Any) -> bool:
        return bool(value.is_contiguous() and not value.is_neg() and value.data_ptr() % ALIGNMENT == 0)

    def empty(self, shape: Shape, dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self.dtypes[dtype], device=self.device)

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream(self.device).cuda_stream)

    def workspace(self, size: int) -> tuple[int, Any]:
        memory = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        return memory.data_ptr(), memory


class _CupyKind:
    """CuPy's arrays on one GPU."""

    foreign = False

    def __init__(self, cupy: Any, gpu: int) -> None:
        self.cupy, self.gpu = cupy, gpu

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        return 0

    def dense(self, value: Any) -> Any:
        with self.cupy.cuda.Device(self.gpu):
            return value if self.is_dense(value) else self.cupy.array(value, order="C")

    def is_dense(self, value: Any) -> bool:
        return bool(value.flags.c_contiguous and value.data.ptr % ALIGNMENT == 0)

    def empty(self, shape: Shape, dtype: str) -> Any:
        with self.cupy.cuda.Device(self.gpu):
            return self.cupy.empty(shape, NUMPY_DTYPES[dtype])

    def copy(self, target: Any, source: Any) -> None:
        with self.cupy.cuda.Device(self.gpu):
            target[...] = source

    def fill_zero(self, value: Any) -> None:
        with self.cupy.cuda.Device(self.gpu):
            value[...] = 0

    def extent(self, value: Any) -> tuple[int, int]:
        begin = int(value.data.ptr)
        if value.size == 0:
            return begin, begin
        reach = [(size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True)]
        low, high = sum(min(each, 0) for each in reach), sum(max(each, 0) for each in reach)
        return begin + low, begin + high + int(value.itemsize)

    def check_writable(self, name: str, value: Any) -> None:
        arrays.check_places(name, value.shape, value.strides)

    def stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream(self.gpu).ptr)

    def workspace(self, size: int) -> tuple[int, Any]:
        with self.cupy.cuda.Device(self.gpu):
            memory = self.cupy.cuda.alloc(size)
        return int(memory.ptr), memory


class _ForeignKind:
    """Whatever else has DLPack, on one GPU: dense memory (dlpack.Memory) on the default stream."""

    foreign = True

    def __init__(self, library: None, gpu: int) -> None:
        self.gpu = gpu

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        return 0

    def dense(self, value: Any) -> Any:
        return value

    def is_dense(self, value: Any) -> bool:
        return True

    def empty(self, shape: Shape, dtype: str) -> Any:
        raise TypeError("out: missing; new tensors on a GPU are made for PyTorch's and CuPy's alone, expected an out")

    def copy(self, target: Any, source: Any) -> None:
        raise ValueError("out: shares memory with an input, expected memory of its own")

    def fill_zero(self, value: Any) -> None:
        begin, end = self.extent(value)
        device = driver.driver()
        with device.on(self.gpu):
            device.clear(begin, end - begin, self.stream())
            device.synchronize(self.stream())

    def extent(self, value: Any) -> tuple[int, int]:
        return value.address, value.address + value.bytes

    def check_writable(self, name: str, value: Any) -> None:
        if value.read_only:
            raise ValueError(f"{name}: is read-only")

    def stream(self) -> int:
        return driver.LEGACY_STREAM

    def workspace(self, size: int) -> tuple[int, Any]:
        memory = Memory(self.gpu, size)
        return memory.address, memory


class _OwnKind(_ForeignKind):
    """Arrays of this package's, on one GPU. A call waits for its end, as one with foreign tensors does."""

    def empty(self, shape: Shape, dtype: str) -> Any:
        return GpuArray(shape, dtype, self.gpu)

    def extent(self, value: Any) -> tuple[int, int]:
        return value.memory.address, value.memory.address + value.memory.bytes

    def check_writable(self, name: str, value: Any) -> None:
        """Always."""


_LIBRARIES = (
    _Library("torch", "Tensor", lambda value: value.device.index if value.device.type == "cuda" else None, _torch),
    _Library("cupy", "ndarray", lambda value: int(value.device.id), _cupy),
    _Library(GpuArray.__module__, "GpuArray", lambda value: value.memory.gpu, _own),
)
