"""Tensors on a GPU: PyTorch's, CuPy's, and whatever else offers its memory through DLPack.

The first two are read where they lie, and bring their stream and their allocator. What is strided or misaligned is
copied, by their library. Of any other library no stream is known: its tensors are asked for on the default one, and a
call that has any of them waits for its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmconvgrad.common import process
from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime import arrays, dlpack, tensors
from tvmconvgrad.runtime.arrays import Tensor
from tvmconvgrad.runtime.cuda.kinds import ALIGNMENT, GpuKind, cupy_kind, foreign_kind, own_kind, torch_kind
from tvmconvgrad.runtime.cuda.memory import GpuArray

_CUDA = 2  # DLDeviceType


def gpu_of(value: Any) -> int | None:
    """The number of the GPU that a tensor is on; None for whatever else."""
    if type(value) is np.ndarray:
        return None
    library = _library(value)
    try:
        if library is not None:
            return library.number(value)
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


def understand(name: str, value: Any, *, writes: bool = False) -> Tensor:
    """Look at a caller's tensor; raises TypeError or ValueError, which name it, for what no GPU's kernel can take.

    With `writes` it is to receive a result.
    """
    gpu = gpu_of(value)
    if gpu is None:
        tensors.understand(name, value)  # what is no tensor at all
        raise ValueError(f"{name}: is on the CPU, expected an NVIDIA GPU, for which the kernel is")
    library = _library(value)
    return _foreign(name, value, gpu, writes) if library is None else library.make(name, value, gpu, writes)


class _Library(NamedTuple):
    """A library that is known: its module's name, its tensors' class, and what is done with a tensor."""

    module: str
    kind: str
    number: Callable[[Any], int | None]
    make: Callable[[str, Any, int, bool], Tensor]


def _library(value: Any) -> _Library | None:
    """The one that a tensor is of; none is imported for that."""
    for library in _LIBRARIES:
        module = sys.modules.get(library.module)
        if module is not None and isinstance(value, getattr(module, library.kind, ())):
            return library
    return None


def _torch(name: str, value: Any, gpu: int, writes: bool) -> Tensor:
    with process.lock:
        from tvmconvgrad.runtime.torch_tensors import check

    torch = sys.modules["torch"]
    check(name, value, "cuda", writes=writes)
    tensors.meet_torch(torch)
    kind = _quick[value.device] = _kind(torch_kind, torch, gpu)
    return Tensor(value, tuple(value.shape), arrays.dtype_of(name, value.dtype), kind)


def _cupy(name: str, value: Any, gpu: int, writes: bool) -> Tensor:
    if writes:
        arrays.check_places(name, value.shape, value.strides, value.itemsize)
    kind = _kind(cupy_kind, sys.modules["cupy"], gpu)
    return Tensor(value, tuple(value.shape), arrays.dtype_of(name, value.dtype), kind)


def _own(name: str, value: Any, gpu: int, writes: bool) -> Tensor:
    return Tensor(value, value.shape, value.dtype, _kind(own_kind, None, gpu))


def _foreign(name: str, value: Any, gpu: int, writes: bool) -> Tensor:
    memory = dlpack.Memory(name, value, writes=writes, stream=driver.LEGACY_STREAM)
    if not memory.is_dense or memory.address % ALIGNMENT:
        what = f"rows without gaps, aligned to {ALIGNMENT} bytes"
        raise ValueError(f"{name}: a {type(value).__name__} on a GPU is taken as it is, and has not {what}")
    return Tensor(memory, memory.shape, memory.dtype, _kind(foreign_kind, None, gpu))


def known_kind(value: Any) -> GpuKind | None:
    """The kind of a plain tensor of PyTorch's, on a GPU that has been seen before."""
    return _quick.get(value.device) if _quick and tensors.known_kind(value) is not None else None


_quick: dict[Any, GpuKind] = {}  # by PyTorch's device
_kinds: dict[tuple[Callable[..., GpuKind], int], GpuKind] = {}


def _kind(make: Callable[[Any, int], GpuKind], library: Any, gpu: int) -> GpuKind:
    if (make, gpu) not in _kinds:
        _kinds[make, gpu] = make(library, gpu)
    return _kinds[make, gpu]


@process.forgets
def forget_kinds() -> None:
    """As if no tensor on a GPU had been seen."""
    _quick.clear()
    _kinds.clear()


_LIBRARIES = (
    _Library("torch", "Tensor", lambda value: value.device.index if value.device.type == "cuda" else None, _torch),
    _Library("cupy", "ndarray", lambda value: int(value.device.id), _cupy),
    _Library(GpuArray.__module__, "GpuArray", lambda value: value.memory.gpu, _own),
)
