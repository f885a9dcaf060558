"""A convolution and its gradients as PyTorch operators that always use this package's kernels, for custom layers.

They have derivatives and fake implementations, so that `torch.compile(fullgraph=True)` accepts them. They wait while a
kernel is built, and raise a ValueError for what no kernel computes. They do not need `enable`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.torch import devices
from tvmconvgrad.torch.devices import Device
from tvmconvgrad.torch.dispatch import derivatives
from tvmconvgrad.torch.dispatch.dispatcher import KEYS
from tvmconvgrad.torch.layers.description import backward_of, forward_of
from tvmconvgrad.torch.layers.layer import Gradients, output, sum_for_bias, weights_and_bias
from tvmconvgrad.torch.settings import DEVICES, Settings, parse_settings
from tvmconvgrad.torch.steps.step import Step

Tensor = torch.Tensor
NAMESPACE = "tvmconvgrad"
_NUMBERS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups"
)
_SCHEMAS = (
    f"convolution(Tensor input, Tensor weight, Tensor? bias, {_NUMBERS}) -> Tensor",
    "conv_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, "
    f"{_NUMBERS}, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """`torch.ops.aten.convolution` by this package's kernel, with the same arguments, result and derivatives.

    `input` has the shape (N, C, *spatial) with one to three spatial axes, `weight` (O, C / groups, *kernel), or
    (C, O / groups, *kernel) if `transposed`, `bias` (O,). Returns (N, O, *spatial). All tensors are on the CPU, or on
    one NVIDIA GPU, and have the same type: f32, bf16 or f16. Waits for the kernel if it has to be built.

    Raises ValueError, which says why, for what no kernel computes; NotImplementedError for tensors on other devices.
    """
    arguments = stride, padding, dilation, transposed, output_padding, groups
    return derivatives.convolution(input, weight, bias, *arguments)  # type: ignore[no-any-return]


def conv_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """`torch.ops.aten.convolution_backward` by this package's kernels, with the same arguments and results.

    Shapes and types are those of `convolution`; `grad_output` has its result's, (N, O, *spatial). Returns the gradients
    by `input`, `weight` and bias, (O,); None for those whose entry in `output_mask` is False.

    Raises ValueError, which says why, for what no kernel computes; NotImplementedError for tensors on other devices.
    """
    arguments = bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
    return derivatives.conv_backward(grad_output, input, weight, *arguments)  # type: ignore[no-any-return]


@functools.cache
def _settings() -> Settings:
    return parse_settings("direct", None, DEVICES, None)


def _convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    layer = forward_of(_settings(), _device_of(input, weight, bias), input, weight, bias, *arguments)
    return _computed(layer.step, input, weight, bias)


def _conv_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *arguments: Any,
) -> Gradients:
    *numbers, mask = arguments
    device = _device_of(grad_output, input, weight)
    layer = backward_of(_settings(), device, grad_output, input, weight, mask, *numbers)
    by_input = _computed(layer.data, grad_output, weight) if mask[0] else None
    if not mask[1]:
        return by_input, None, sum_for_bias(grad_output) if mask[2] else None
    kernel = _kernel(layer.weights)
    found = weights_and_bias(layer.weights, kernel, input, grad_output, mask[2])
    return (by_input, *(found or _refuse(layer.weights)))


def _device_of(*tensors: Tensor | None) -> Device:
    device = devices.common(*tensors)
    if device is None:
        found = ", ".join(str(tensor.device) for tensor in tensors if tensor is not None)
        raise ValueError(f"tensors on devices {found}, expected all on the CPU, or all on one NVIDIA GPU")
    return device


def _computed(step: Step, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
    result = output(step, _kernel(step), first, second, bias)
    return _refuse(step) if result is None else result


def _kernel(step: Step) -> Kernel:
    """A step's kernel, for which it waits."""
    return (None if step.build is None else step.build.wait()) or _refuse(step)


def _refuse(step: Step) -> NoReturn:
    raise ValueError(f"{step.part.value}: no kernel computes this: {step.reason or 'a tensor without memory'}")


_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
for _schema in _SCHEMAS:
    _library.define(_schema)  # type: ignore[no-untyped-call]
for _key in KEYS:
    _library.impl("convolution", _convolution, _key)  # type: ignore[no-untyped-call]
    _library.impl("conv_backward", _conv_backward, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::convolution", torch.ops.aten.convolution.default, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::conv_backward", torch.ops.aten.convolution_backward.default, lib=_library)
_library.impl("convolution", derivatives.Convolution.apply, "Autograd")  # type: ignore[no-untyped-call]
_library.impl("conv_backward", derivatives.ConvBackward.apply, "Autograd")  # type: ignore[no-untyped-call]
