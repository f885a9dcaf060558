"""What a call does with tensors of each library on one GPU: how they lie, on which stream, from which memory."""

from __future__ import annotations

from typing import Any, Protocol

from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime import torch_tensors
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, Kind, Shape, Strided, Unaligned, UnseenKind
from tvmconvgrad.runtime.cuda.memory import GpuArray, Memory
from tvmconvgrad.runtime.torch_tensors import TorchKind

ALIGNMENT = 16
"""Of tensors, in bytes: what one instruction moves. Memory that is not aligned to it ends the GPU's context."""


class GpuKind(Kind, Protocol):
    """What a call does with tensors of one library on one GPU."""

    gpu: int
    foreign: bool
    """Whether the library's stream is unknown."""

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        """The address of a tensor that is just as a kernel takes it; 0 for one that needs a closer look."""

    def stream(self) -> int:
        """The stream that its library works on now."""

    def workspace(self, size: int) -> tuple[int, Any]:
        """The address of `size` bytes on the GPU, and the object that holds them. Once that is dropped, its library may
        use them for what it launches on the stream."""


class _TorchKind(TorchKind):
    """PyTorch's tensors on one GPU."""

    alignment = ALIGNMENT
    foreign = False

    def __init__(self, torch: Any, gpu: int) -> None:
        super().__init__(torch)
        self.gpu, self.device = gpu, torch.device("cuda", gpu)

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        if value.shape != shape or value.dtype is not self.dtypes[dtype] or value.layout is not self.torch.strided:
            return 0
        if not torch_tensors.is_free(value, self.torch, write) or self.misfit(value) is not None:
            return 0
        address: int = value.data_ptr()
        return address

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream(self.device).cuda_stream)

    def workspace(self, size: int) -> tuple[int, Any]:
        memory = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        return memory.data_ptr(), memory


class _CupyKind(UnseenKind):
    """CuPy's arrays on one GPU."""

    foreign = False

    def __init__(self, cupy: Any, gpu: int) -> None:
        self.cupy, self.gpu = cupy, gpu

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        return 0

    def misfit(self, value: Any) -> object | None:
        if not value.flags.c_contiguous:
            return Strided(value.shape, value.strides)
        return Unaligned(ALIGNMENT) if value.data.ptr % ALIGNMENT else None

    def dense_copy(self, value: Any) -> Any:
        with self.cupy.cuda.Device(self.gpu):
            return self.cupy.array(value, order="C")

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

    def stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream(self.gpu).ptr)

    def workspace(self, size: int) -> tuple[int, Any]:
        with self.cupy.cuda.Device(self.gpu):
            memory = self.cupy.cuda.alloc(size)
        return int(memory.ptr), memory


class _ForeignKind(UnseenKind):
    """Whatever else has DLPack, on one GPU: dense memory (dlpack.Memory) on the default stream."""

    foreign = True

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu

    def address(self, value: Any, shape: Shape, dtype: str, write: bool) -> int:
        return 0

    def misfit(self, value: Any) -> object | None:
        return None

    def dense_copy(self, value: Any) -> Any:
        raise AssertionError("what is not dense was refused (dlpack.Memory)")

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


def torch_kind(torch: Any, gpu: int) -> GpuKind:
    """Of the module `torch`, on the GPU of this number."""
    return _TorchKind(torch, gpu)


def cupy_kind(cupy: Any, gpu: int) -> GpuKind:
    """Of the module `cupy`."""
    return _CupyKind(cupy, gpu)


def foreign_kind(_: None, gpu: int) -> GpuKind:
    """Of whatever else has DLPack, as dlpack.Memory."""
    return _ForeignKind(gpu)


def own_kind(_: None, gpu: int) -> GpuKind:
    """Of GpuArray."""
    return _OwnKind(gpu)
