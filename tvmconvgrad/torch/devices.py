"""What depends on the device that tensors are on: target, call of a kernel, threads or stream, and measuring."""

# ruff: noqa: D102 -- Device says what the methods of a device do

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from tvmconvgrad.frontends.algorithms import target_of
from tvmconvgrad.machines.targets import Target, own_architecture, parse_target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime.cuda import kinds
from tvmconvgrad.runtime.cuda.kernel import CudaKernel
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.openmp import OpenMP, openmp_of_torch

Tensor = torch.Tensor
_DELAY = 1 << 20
"""Cycles of a GPU: half a millisecond on an H100, where starting our kernel or PyTorch's takes 0.015 to 0.1."""


class Device(Protocol):
    """A device that kernels run on."""

    @property
    def where(self) -> torch.device:
        """As PyTorch names it."""

    @property
    def gpu(self) -> int | None:
        """The number of the GPU; None for the CPU."""

    def obstacle(self) -> str:
        """Why no kernel can run here; "" if kernels can."""

    def target(self, algorithm: str) -> Target | None:
        """The target of kernels by `enable`'s algorithm. None: what a bundle in use has, else this very device."""

    def facts(self, target: Target | None) -> dict[str, Any]:
        """What the time of a call depends on besides the problem, as JSON."""

    def alignment(self, dtype: torch.dtype) -> int:
        """Of a kernel's tensors, in bytes."""

    def is_recording(self) -> bool:
        """Whether a call is not carried out now, but recorded, to be carried out later, and maybe often."""

    def run(self, kernel: Kernel, first: Tensor, second: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        """Compute `out` by a kernel from tensors that are just as it takes them. `bias` is added, or receives the
        bias gradient."""

    def timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """The result of a call, and the nanoseconds that it takes of a program's time."""


class Cpu:
    """This machine's CPU. Kernels run on PyTorch's own threads."""

    where = torch.device("cpu")
    gpu = None

    def obstacle(self) -> str:
        return ""

    def target(self, algorithm: str) -> Target | None:
        return target_of(algorithm)

    def facts(self, target: Target | None) -> dict[str, Any]:
        return {"target": str(target or parse_target()), "threads": torch.get_num_threads()}

    def alignment(self, dtype: torch.dtype) -> int:
        return dtype.itemsize

    def is_recording(self) -> bool:
        return False

    def run(self, kernel: Kernel, first: Tensor, second: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        found = _openmp()
        openmp = 0 if found is None else ctypes.addressof(found)
        address = 0 if bias is None else bias.data_ptr()
        kernel.run(first.data_ptr(), second.data_ptr(), out.data_ptr(), openmp, torch.get_num_threads(), address)

    def timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        begin = time.perf_counter_ns()
        result = call()
        return result, time.perf_counter_ns() - begin


class Gpu:
    """An NVIDIA GPU. Kernels are launched on the stream that is current in PyTorch, with workspace of its allocator.

    All targets are direct, and f32 is multiplied as it is, also where PyTorch may round to TF32.
    """

    def __init__(self, where: torch.device) -> None:
        self.where, self.gpu = where, where.index
        self._kind = kinds.torch_kind(torch, where.index)

    def obstacle(self) -> str:
        try:
            driver.driver()
        except driver.MissingGpu as reason:  # as where PyTorch's "cuda" is another maker's
            return str(reason)
        return ""

    def target(self, algorithm: str) -> Target | None:
        return None

    def facts(self, target: Target | None) -> dict[str, Any]:
        found = driver.driver()
        return {"target": f"cuda -arch={own_architecture(found.architecture(self.gpu))}", "gpu": found.name(self.gpu)}

    def alignment(self, dtype: torch.dtype) -> int:
        return kinds.ALIGNMENT

    def is_recording(self) -> bool:
        with driver.driver().on(self.gpu):
            return driver.driver().records(self._kind.stream(), ctypes.c_int())

    def run(self, kernel: Kernel, first: Tensor, second: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
        cast(CudaKernel, kernel).launch(self._kind, first.data_ptr(), second.data_ptr(), out.data_ptr())

    def timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """The GPU's nanoseconds, or the CPU's for starting the call where those are more.

        In a program that keeps the GPU busy, both work side by side, and the slower one decides. So the GPU is busy
        when the call begins: else it would wait for the CPU, and its time would be the sum of both.
        """
        found, stream = driver.driver(), self._kind.stream()
        with found.on(self.gpu), found.event() as begin, found.event() as end:
            self._delay()
            found.record(begin, stream)
            since = time.perf_counter_ns()
            result = call()
            starting = time.perf_counter_ns() - since
            found.record(end, stream)
            found.synchronize(stream)
            return result, max(starting, round(found.milliseconds(begin, end) * 1e6))

    def _delay(self) -> None:
        """Keep the current stream busy."""
        with torch.cuda.device(self.where):
            torch.cuda._sleep(_DELAY)  # type: ignore[no-untyped-call]


CPU: Device = Cpu()


def common(*tensors: Tensor | None) -> Device | None:
    """The device that all tensors are on; None if they are on several, or where no kernel can be for."""
    found = {tensor.device for tensor in tensors if tensor is not None}
    where = found.pop()
    if found or where.type not in ("cpu", "cuda"):
        return None
    return CPU if where.type == "cpu" else _gpu(where)


@functools.cache
def _gpu(where: torch.device) -> Gpu:
    return Gpu(where)


@functools.cache
def _openmp() -> OpenMP | None:
    return openmp_of_torch(torch)
