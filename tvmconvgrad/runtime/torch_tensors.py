"""PyTorch's tensors. Imported when the first one is seen; PyTorch itself is the caller's."""

from __future__ import annotations

from typing import Any

from tvmconvgrad.runtime import python_calls, threads
from tvmconvgrad.runtime.arrays import Kind, Shape, WrongDevice, check_places

_EXPECTED = {"cpu": "the CPU", "cuda": "an NVIDIA GPU"}


def check(name: str, value: Any, device: str = "cpu") -> None:
    """Raise TypeError or ValueError for a tensor without dense memory on a device of this type."""
    if str(value.layout) != "torch.strided":
        raise TypeError(f"{name}: a tensor of layout {value.layout} has no dense memory, expected torch.strided")
    if value.device.type != device:
        expected = f"expected {_EXPECTED[device]}, for which the kernel is"
        raise WrongDevice(f"{name}: is on device {value.device}, {expected}")
    if value.is_quantized:
        raise ValueError(f"{name}: is quantized, dtype {value.dtype}, expected f32, f16 or bf16")
    try:
        place = value.untyped_storage().device.type
    except RuntimeError:
        place = "none"
    if place != device:  # it stands for others (under vmap), or for nothing (FakeTensor)
        raise TypeError(f"{name}: a {type(value).__name__} without memory of its own, expected plain values")


def torch_kind(torch: Any) -> Kind:
    """What a kernel's call does with tensors of the module `torch`, whose number of threads is heeded from now on."""
    python_calls.meet_torch(torch)
    threads.follow(torch.get_num_threads)
    return _TorchKind(torch)


class _TorchKind:
    """PyTorch's tensors on the CPU."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

    def dense(self, value: Any) -> Any:
        value = value.detach().contiguous().resolve_neg()
        return value if self.is_dense(value) else value.clone()

    def is_dense(self, value: Any) -> bool:
        return bool(value.is_contiguous() and not value.is_neg() and value.data_ptr() % value.itemsize == 0)

    def empty(self, shape: Shape, dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self.dtypes[dtype], device="cpu")

    def copy(self, target: Any, source: Any) -> None:
        target.detach().copy_(source)

    def fill_zero(self, value: Any) -> None:
        value.detach().zero_()

    def extent(self, value: Any) -> tuple[int, int]:
        begin = value.data_ptr()
        if value.numel() == 0:
            return begin, begin
        span = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
        return begin, begin + span * value.itemsize

    def check_writable(self, name: str, value: Any) -> None:
        if value.requires_grad and self.torch.is_grad_enabled():
            raise ValueError(f"{name}: requires grad, and autograd does not see what a kernel writes; detach it")
        check_places(name, value.shape, value.stride())
