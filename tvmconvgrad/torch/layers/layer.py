"""The forward and the backward pass of one layer: a convolution with tensors of certain shapes, strides and types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.torch.layers.convolution import Convolution
from tvmconvgrad.torch.steps.step import Step

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

_NAMES = {part: f"tvmconvgrad::convolution_{part.name.lower()}" for part in Part}
"""The names of our kernels in torch.profiler."""


class Forward:
    """`aten::convolution` for one layer."""

    def __init__(self, conv: Convolution, step: Step, has_bias: bool) -> None:
        self.conv, self.step = conv, step
        self.steps = (step,)
        self.name = f"{conv}, bias" if has_bias else str(conv)

    def uses_pytorch(self) -> bool:
        """Whether PyTorch computes this call for certain: the shortest way for the caller. Counts the call if so."""
        if not self.step.uses_pytorch():
            return False
        self.step.calls += 1
        return True

    def run(self, input: Tensor, weight: Tensor, bias: Tensor | None, theirs: Callable[[], Tensor]) -> Tensor:
        """The output. `theirs` computes it by PyTorch's kernel."""
        step = self.step
        kernel = step.kernel_for_this_call()
        if kernel is None:
            return step.by(None, theirs)  # type: ignore[no-any-return]

        return step.by(lambda: output(step, kernel, input, weight, bias), theirs)  # type: ignore[no-any-return]


class Backward:
    """`aten::convolution_backward` for one layer."""

    def __init__(self, conv: Convolution, data: Step, weights: Step) -> None:
        self.conv, self.data, self.weights = conv, data, weights
        self.steps = (data, weights)
        self.name = str(conv)

    def uses_pytorch(self, mask: Sequence[bool]) -> bool:
        """Whether PyTorch computes all gradients that `mask` asks for, for certain. Counts the call if so."""
        by_data, by_weights = mask[0], mask[1]
        if (by_data and not self.data.uses_pytorch()) or (by_weights and not self.weights.uses_pytorch()):
            return False
        self.data.calls += by_data
        self.weights.calls += by_weights
        return True

    def run(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        mask: Sequence[bool],
        theirs: Callable[[list[bool]], Gradients],
    ) -> Gradients:
        """The data, weights and bias gradients; None for those that `mask` does not ask for.

        `theirs` computes those of a mask by PyTorch's kernel.
        """
        wants_data, wants_weights, wants_bias = mask
        data, weights = self.data, self.weights
        for_data = data.kernel_for_this_call() if wants_data else None
        for_weights = weights.kernel_for_this_call() if wants_weights else None
        is_open = (wants_data and data.is_open) or (wants_weights and weights.is_open)
        if for_data is None and for_weights is None and not is_open:
            return theirs(list(mask))  # one call for all: PyTorch may share work among the gradients
        by_input, by_weight, by_bias = None, None, None
        if wants_bias and not wants_weights:  # its time says nothing about the weights gradient
            by_weight, by_bias = theirs([False, False, True])[1:]
        if wants_weights:
            asked = [False, True, bool(wants_bias)]
            our_weights = None
            if for_weights is not None:
                our_weights = partial(weights_and_bias, weights, for_weights, input, grad_output, wants_bias)
            by_weight, by_bias = weights.by(our_weights, lambda: theirs(asked)[1:])
        if wants_data:
            our_data = None if for_data is None else partial(_compute, data, for_data, (grad_output, weight))
            by_input = data.by(our_data, lambda: theirs([True, False, False])[0])
        return by_input, by_weight, by_bias


def output(step: Step, kernel: Kernel, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Our output (N, O, *spatial) with a bias (O,), if there is one; None as for `Step.compute`."""
    if bias is None:
        return _compute(step, kernel, (input, weight))
    if kernel.problem.epilogue.bias:
        return _compute(step, kernel, (input, weight, bias))
    out = _compute(step, kernel, (input, weight))
    return None if out is None else out.add_(bias.view(1, -1, *[1] * (out.ndim - 2)))


def sum_for_bias(grad_output: Tensor) -> Tensor:
    """The bias gradient, of shape (O,): the sum of grad_output (N, O, *spatial) over all other axes."""
    return grad_output.sum((0, *range(2, grad_output.ndim)))


def weights_and_bias(
    step: Step, kernel: Kernel, input: Tensor, grad_output: Tensor, wants_bias: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Our weights and bias gradients; None as for `Step.compute`."""
    bias = None
    if kernel.problem.epilogue.bias_delta:
        bias = grad_output.new_empty(kernel.problem.bias_shape)
    result = _compute(step, kernel, (input, grad_output), bias)
    if result is not None and wants_bias and bias is None:
        bias = sum_for_bias(grad_output)
    return None if result is None else (result, bias)


def _compute(step: Step, kernel: Kernel, read: Sequence[Tensor], bias_delta: Tensor | None = None) -> Tensor | None:
    if not _profiler_enabled():
        return step.compute(kernel, read, bias_delta)
    with record_function(_NAMES[step.part]):
        return step.compute(kernel, read, bias_delta)
