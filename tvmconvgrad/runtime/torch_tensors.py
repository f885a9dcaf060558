"""PyTorch's tensors. Imported when the first one is seen; PyTorch itself is the caller's."""

# ruff: noqa: D102 -- arrays.Kind says what the methods of a kind do

from __future__ import annotations

import sys
from math import prod
from typing import Any

from tvmconvgrad.runtime import python_calls, threads
from tvmconvgrad.runtime.arrays import Kind, Shape, Strided, Unaligned, UnseenKind, WrongDevice, check_places

_MOST_SHAPES = 4096
_EXPECTED = {"cpu": "the CPU", "cuda": "an NVIDIA GPU"}


def check(name: str, value: Any, device: str = "cpu", *, writes: bool = False) -> None:
    """Raise TypeError or ValueError for a tensor without dense memory on a device of this type, and for one whose
    reading, or writing where `writes`, autograd or a tracer would have to see."""
    torch = sys.modules["torch"]
    if not _is_plain(type(value), torch):  # first: what its methods do is unknown
        what = f"a {type(value).__name__}, a subclass with PyTorch's functions or operators of its own"
        raise TypeError(f"{name}: is {what}, expected a plain torch.Tensor")
    if str(value.layout) != "torch.strided":
        raise TypeError(f"{name}: a tensor of layout {value.layout} has no dense memory, expected torch.strided")
    if value.is_nested:
        raise TypeError(f"{name}: a nested tensor has no single shape, expected a plain torch.Tensor")
    if value.device.type != device:
        expected = f"expected {_EXPECTED[device]}, for which the kernel is"
        raise WrongDevice(f"{name}: is on device {value.device}, {expected}")
    if value.is_quantized:
        raise ValueError(f"{name}: is quantized, dtype {value.dtype}, expected f32, f16 or bf16")
    _check_tracers(name, torch)
    _check_memory(name, value, device)
    _check_autograd(name, value, torch, writes)
    if writes:
        check_places(name, value.shape, value.stride(), 1)


def is_free(value: Any, torch: Any, writes: bool) -> bool:
    """Whether neither autograd nor a tracer can have to do with a tensor that is read, or written; False: look closer.

    csrc/python.c asks the same.
    """
    if value.requires_grad and (writes or torch.is_grad_enabled()):
        return False
    if (writes and value.is_inference()) or torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing():
        return False
    return bool(torch.autograd.forward_ad._current_level < 0)


def _is_plain(kind: type, torch: Any) -> bool:
    """Whether a class leaves PyTorch's functions and operators as they are."""
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)  # type: ignore[attr-defined]
    plain = torch.Tensor.__torch_function__.__func__, torch.nn.Parameter.__torch_function__
    operators = kind.__torch_dispatch__  # type: ignore[attr-defined]
    return function in plain and operators is torch.Tensor.__torch_dispatch__


def _check_tracers(name: str, torch: Any) -> None:
    """A tracer would record how the result's memory is made, and not what is written into it."""
    if torch.jit.is_tracing():
        tracer = "torch.jit.trace"
    elif torch._C._len_torch_dispatch_stack():
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        # those that have a key are PyTorch's own: fake tensors, functionalization, make_fx
        kinds = [type(mode) for mode in _get_current_dispatch_mode_stack() if getattr(mode, "_mode_key", None)]
        if not kinds:
            return
        tracer = kinds[-1].__name__
    else:
        return
    raise ValueError(
        f"{name}: {tracer} is at work, which cannot record a call of a kernel; expected a call outside of it"
    )


def _check_memory(name: str, value: Any, device: str) -> None:
    try:
        storage = value.untyped_storage()
        place = storage.device.type
    except RuntimeError:  # also NotImplementedError
        place = "none"
    if place != device:  # it stands for others (under vmap), or for nothing (FakeTensor)
        raise TypeError(f"{name}: a {type(value).__name__} without memory of its own, expected plain values")
    if value.numel() == 0:
        return
    end = (value.storage_offset() + _span(value)) * value.itemsize
    if end > storage.nbytes():
        has = f"its elements need {end} bytes of a storage of {storage.nbytes()}, which was freed or made smaller"
        raise ValueError(f"{name}: {has}, expected a tensor with memory")
    if value.data_ptr() == 0:  # torch.func.functionalize, torch._efficientzerotensor
        raise TypeError(f"{name}: a {type(value).__name__} without memory of its own, expected plain values")


def _check_autograd(name: str, value: Any, torch: Any, writes: bool) -> None:
    grad, forward = torch.is_grad_enabled(), torch.autograd.forward_ad
    if value.requires_grad and grad and writes:
        raise ValueError(f"{name}: requires grad, and autograd does not see what a kernel writes; detach it")
    if value.requires_grad and grad:
        ways = (
            f"pass {name}.detach(), call inside of torch.no_grad() or a torch.autograd.Function's backward, or let "
            "PyTorch's own convolutions be computed by kernels with tvmconvgrad.torch.enable()"
        )
        raise ValueError(
            f"{name}: requires grad, and the result would have no graph, since autograd sees no kernel; {ways}"
        )
    if (
        forward._current_level >= 0
        and torch._C._is_fwd_grad_enabled()
        and forward.unpack_dual(value).tangent is not None
    ):
        ways = "pass its primal (torch.autograd.forward_ad.unpack_dual)"
        raise ValueError(f"{name}: has a forward-mode tangent, which a kernel does not see; {ways}")
    if writes and value.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{name}: is an inference tensor, which is written inside of torch.inference_mode() alone; clone it"
        )


def _span(value: Any) -> int:
    """From the first element of a tensor that has any to behind the last one."""
    last: int = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return last + 1


def _dense_strides(shape: Shape) -> Shape:
    """Between the elements of rows without gaps."""
    return tuple(prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def torch_kind(torch: Any) -> Kind:
    """What a kernel's call does with tensors of the module `torch`, whose number of threads is heeded from now on."""
    python_calls.meet_torch(torch)
    threads.follow(torch.get_num_threads)
    return TorchKind(torch)


class TorchKind(UnseenKind):
    """PyTorch's tensors on the CPU."""

    alignment: int | None = None
    """Bytes; None: of an element."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.device = torch.device("cpu")
        self._strides: dict[Shape, Shape] = {}
        self.dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

    def misfit(self, value: Any) -> object | None:
        if not value.is_contiguous():
            return Strided(value.shape, value.stride())
        if value.is_neg():
            return "it is a view that stands for the negative of its memory"
        alignment = self.alignment or value.itemsize
        return Unaligned(alignment) if value.data_ptr() % alignment else None

    def dense_copy(self, value: Any) -> Any:
        value = value.detach().contiguous().resolve_neg()
        return value if self.misfit(value) is None else value.clone()

    def empty(self, shape: Shape, dtype: str) -> Any:
        strides = self._strides.get(shape)
        if strides is None:
            if len(self._strides) >= _MOST_SHAPES:
                self._strides.clear()
            strides = self._strides[shape] = _dense_strides(shape)
        # torch.empty takes half a microsecond more
        return self.torch.empty_strided(shape, strides, dtype=self.dtypes[dtype], device=self.device)

    def copy(self, target: Any, source: Any) -> None:
        target.detach().copy_(source)

    def fill_zero(self, value: Any) -> None:
        value.detach().zero_()

    def extent(self, value: Any) -> tuple[int, int]:
        begin = value.data_ptr()
        return begin, begin + (_span(value) * value.itemsize if value.numel() else 0)

    def mark_written(self, value: Any) -> None:
        self.torch.autograd.graph.increment_version(value)
