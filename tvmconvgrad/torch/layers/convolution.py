"""A convolution of PyTorch, and the operator of the specification that computes each of its parts.

The specification has gradients alone. But the forward of a convolution is the same sum as the data gradient of a
transposed convolution with the same filter, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmconvgrad import spec
from tvmconvgrad.frontends.parts import Part, layer_text
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import Shape

_OPERATORS: dict[tuple[bool, bool], Any] = {
    (False, False): spec.ConvolutionBackpropData,
    (False, True): spec.ConvTransposeBackpropData,
    (True, False): spec.ConvolutionBackpropFilters,
    (True, True): spec.ConvTransposeBackpropFilters,
}
"""By whether the result is the filter, and whether it is an operator of ConvTranspose."""
_FILTER_FORMATS = {(False, False): "OIX", (False, True): "OXI", (True, False): "IOX", (True, True): "IXO"}
"""By whether it is an operator of ConvTranspose, and whether the filter has channels last."""


@dataclass(frozen=True)
class Convolution:
    """The shapes, numbers and type of one `aten::convolution`, in PyTorch's names and order of axes.

    `input` is the shape (N, C, *spatial), `output` is (N, O, *spatial), and `weight` is (O, C / groups, *kernel), or
    (C, O / groups, *kernel) if `transposed`. `stride`, `padding`, `dilation` and `output_padding` have an entry for
    each spatial axis. `dtype` is "f32", "f16" or "bf16".
    """

    transposed: bool
    input: Shape
    weight: Shape
    output: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int
    dtype: str

    @property
    def without_sizes(self) -> tuple[Any, ...]:
        """All that does not depend on the sizes of the batch and the image."""
        numbers = self.stride, self.padding, self.dilation, self.output_padding, self.groups
        return (self.transposed, self.weight, *numbers, self.dtype)

    def __str__(self) -> str:
        name = f"conv{'_transpose' if self.transposed else ''}{len(self.stride)}d"
        if min(len(self.input), len(self.weight)) < 2:  # PyTorch refuses it
            return f"{name} of {self.input} by {self.weight}"
        channels = self.input[1], self.weight[1] * self.groups if self.transposed else self.weight[0]
        numbers = {name: getattr(self, name) for name in ("stride", "padding", "dilation", "output_padding")}
        return layer_text(name, channels, self.weight[2:], self.input[0], self.input[2:], numbers, self.groups)


def output_shape(
    transposed: bool,
    input: Shape,
    weight: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    output_padding: Shape,
    groups: int,
) -> Shape:
    """The shape (N, O, *spatial) of a convolution's output, as PyTorch defines it."""
    axes = zip(input[2:], weight[2:], stride, padding, dilation, output_padding)
    if transposed:
        positions = ((x - 1) * s - 2 * p + d * (k - 1) + 1 + more for x, k, s, p, d, more in axes)
        return (input[0], weight[1] * groups, *positions)
    return (input[0], weight[0], *((y + 2 * p - d * (k - 1) - 1) // s + 1 for y, k, s, p, d, _ in axes))


def problem_of(part: Part, conv: Convolution, *, channels_last: bool, filter_channels_last: bool) -> Problem:
    """The specification's operator for a part of a convolution, with shapes in the order of axes in memory.

    The flags say in which of PyTorch's two memory formats the data and the filter are. Raises ValueError, in the
    specification's words, for what no operator computes.
    """
    input, output = (_in_memory(shape, channels_last) for shape in (conv.input, conv.output))
    weight = _in_memory(conv.weight, filter_channels_last)
    is_transposed = conv.transposed != (part is Part.FORWARD)
    op = _OPERATORS[part is Part.WEIGHTS, is_transposed](
        **_attributes(conv, channels_last), filter_format=_FILTER_FORMATS[is_transposed, filter_channels_last]
    )
    if part is Part.WEIGHTS:
        return op.problem(input, output, weight, conv.dtype)  # type: ignore[no-any-return]
    read, result = (input, output) if part is Part.FORWARD else (output, input)
    return op.problem(read, weight, None if is_transposed else result, conv.dtype)  # type: ignore[no-any-return]


def _attributes(conv: Convolution, channels_last: bool) -> dict[str, Any]:
    """A convolution's numbers as attributes of an operator, without the filter's format."""
    attributes: dict[str, Any] = {
        "strides": conv.stride,
        "dilations": conv.dilation,
        "pads_begin": conv.padding,
        "pads_end": conv.padding,
        "groups": conv.groups,
        "data_format": "NXC" if channels_last else "NCX",
    }
    if conv.transposed:
        attributes["output_padding"] = conv.output_padding
    return attributes


def _in_memory(shape: Shape, channels_last: bool) -> Shape:
    """A shape of PyTorch's in the order in which a dense tensor's axes lie in memory."""
    return (shape[0], *shape[2:], shape[1]) if channels_last else shape
