"""The derivatives of this package's two operators, of any order, backward and forward.

`torch.library.register_autograd` does less: in forward mode results have no tangent then, without an error, and
`torch.func.grad` is refused.
"""

# ruff: noqa: D102 -- torch.autograd.Function says what its methods do

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
_ops = torch.ops.tvmconvgrad


class Convolution(torch.autograd.Function):
    """`convolution`. Its arguments are input, weight, bias or None, and six numbers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return _ops.convolution(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        input, weight, bias, *ctx.numbers = inputs
        ctx.save_for_backward(input, weight)
        ctx.save_for_forward(input, weight)
        ctx.set_materialize_grads(False)
        ctx.bias_sizes = None if bias is None else list(bias.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> Any:
        nothing = [None] * len(ctx.numbers)
        if grad_output is None:
            return (None, None, None, *nothing)
        mask = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and ctx.bias_sizes is not None]
        found = conv_backward(grad_output, *ctx.saved_tensors, ctx.bias_sizes, *ctx.numbers, mask)
        return (*found, *nothing)

    @staticmethod
    def jvp(ctx: Any, input: Tensor | None, weight: Tensor | None, bias: Tensor | None, *_: Any) -> Any:
        """The tangent by those of the tensors: the convolution is linear in each of input and weight."""
        x, w = ctx.saved_tensors
        tangent = None if input is None else convolution(input, w, None, *ctx.numbers)
        if weight is not None:
            tangent = _sum(tangent, convolution(x, weight, None, *ctx.numbers))
        if bias is not None:
            before = torch.zeros_like(convolution(x, w, None, *ctx.numbers)) if tangent is None else tangent
            tangent = before + bias.view(1, -1, *[1] * (x.ndim - 2))
        return tangent


class ConvBackward(torch.autograd.Function):
    """`conv_backward`. Its arguments are grad_output, input, weight, bias_sizes, six numbers and output_mask."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return _ops.conv_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        grad_output, input, weight, *ctx.others = inputs
        ctx.save_for_backward(grad_output, input, weight)
        ctx.save_for_forward(grad_output, input, weight)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        grad_output, input, weight = ctx.saved_tensors
        _, *numbers, _ = ctx.others
        found = torch.ops.aten._convolution_double_backward(
            *(*grads, grad_output, weight, input, *numbers), [bool(needed) for needed in ctx.needs_input_grad[:3]]
        )
        return (*found, *[None] * len(ctx.others))

    @staticmethod
    def jvp(ctx: Any, grad_output: Tensor | None, input: Tensor | None, weight: Tensor | None, *_: Any) -> Any:
        """The tangents by those of the tensors: each gradient is linear in the two that it is made from."""
        dy, x, w = ctx.saved_tensors
        *others, mask = ctx.others
        by_data, by_weight, by_bias = mask
        tangents: list[Tensor | None] = [None, None, None]
        for tensors, part in (
            ((grad_output, x, w), [by_data, by_weight, by_bias]),
            ((dy, x, weight), [by_data, False, False]),
            ((dy, input, w), [False, by_weight, False]),
        ):
            if any(part) and not any(tensor is None for tensor in tensors):
                tangents = list(map(_sum, tangents, conv_backward(*tensors, *others, part)))
        return tuple(tangents)


def convolution(*arguments: Any) -> Any:
    """The operator `convolution`, with derivatives also where `torch.func` transforms it."""
    return Convolution.apply(*arguments) if _is_transformed() else _ops.convolution(*arguments)  # type: ignore[no-untyped-call]


def conv_backward(*arguments: Any) -> Any:
    """The operator `conv_backward`, likewise."""
    return ConvBackward.apply(*arguments) if _is_transformed() else _ops.conv_backward(*arguments)  # type: ignore[no-untyped-call]


def _is_transformed() -> bool:
    """Whether `torch.func` is at work, which sees functions of autograd alone. A compiler sees operators alone."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
