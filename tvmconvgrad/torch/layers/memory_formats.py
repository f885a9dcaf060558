"""The memory format in which PyTorch computes a convolution, and the strides of tensors in it.

Our results must have the strides that PyTorch's meta kernels predict: Inductor asserts them. So this file asks the two
functions of `torch._C` from which PyTorch's own fake tensors get theirs (torch/_subclasses/fake_impls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tvmconvgrad.spec.values import Shape

_REQUIRED = (
    "_select_conv_backend",
    "_conv_determine_backend_memory_format",
    "_get_mkldnn_enabled",
    "_get_nnpack_enabled",
    "_get_cudnn_enabled",
)

Tensor = torch.Tensor


def flags() -> tuple[bool, ...]:
    """What is switched on in `torch.backends` that a memory format depends on."""
    return torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled(), torch._C._get_cudnn_enabled()


def check_version() -> None:
    """Raise ImportError if this PyTorch lacks the functions that tell its memory formats."""
    missing = [name for name in _REQUIRED if not hasattr(torch._C, name)]
    if missing:
        raise ImportError(
            f"tvmconvgrad.torch: PyTorch {torch.__version__} has no torch._C.{missing[0]}, expected 2.6 or later"
        )


def is_channels_last(input: Tensor, weight: Tensor, *arguments: Any, bias: Tensor | None) -> bool:
    """Whether PyTorch computes a convolution in the format channels_last (or channels_last_3d), not contiguous.

    `arguments` are those of `aten::convolution` after the bias: stride, padding, dilation, transposed, output_padding
    and groups.
    """
    stride, padding, dilation, transposed, output_padding, groups = arguments
    backend = torch._C._select_conv_backend(
        input,
        weight,
        bias=bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        groups=groups,
        **({} if bias is not None else {"bias_sizes": None}),
    )
    if weight.ndim == 3:  # PyTorch makes the input of a Conv1d contiguous and computes a Conv2d
        input, weight = input.contiguous().unsqueeze(2), weight.unsqueeze(2)
    found = torch._C._conv_determine_backend_memory_format(input, weight, backend)
    return found in (torch.channels_last, torch.channels_last_3d)


def strides_of(shape: Shape, channels_last: bool) -> Shape:
    """The strides, in elements, of a dense tensor of shape (N, C, *spatial) in a memory format."""
    last = len(shape) - 1
    order = [0, *range(2, last + 1), 1] if channels_last else list(range(last + 1))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def is_dense(shape: Shape, strides: Shape, channels_last: bool) -> bool:
    """Whether a tensor with these strides is dense in a memory format. An axis of size 1 may have any stride."""
    dense = strides_of(shape, channels_last)
    return all(size == 1 or stride == wanted for size, stride, wanted in zip(shape, strides, dense))


def copier(rank: int, channels_last: bool) -> Callable[[Tensor], Tensor]:
    """A function that returns a tensor of `rank` spatial axes dense in a memory format. It copies if it must."""
    if not channels_last:
        return torch.Tensor.contiguous
    if rank == 1:  # PyTorch has no channels_last format for three axes
        return lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2)
    wanted = torch.channels_last if rank == 2 else torch.channels_last_3d
    return lambda tensor: tensor.contiguous(memory_format=wanted)
