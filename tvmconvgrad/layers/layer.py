"""One layer of a network, as its authors write it down, and the sums that training it takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from tvmconvgrad import spec
from tvmconvgrad.spec import Gradient, Operator, Problem
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.dtypes import parse_dtype
from tvmconvgrad.spec.epilogue import PLAIN, Epilogue
from tvmconvgrad.spec.layouts import DEFAULT_FILTERS, filter_formats, make_shape, other_name
from tvmconvgrad.spec.values import MAX_SPATIAL_RANK, Shape, check_count, parse_choice, parse_int, parse_ints, show

OPS = ("Convolution", "ConvTranspose")
GRADIENTS = ("filters", "data")
KINDS = (*GRADIENTS, "forward")
"""What may be computed of a layer: its weights gradient, its data gradient, and its output."""
# which list has an entry for each spatial axis, the least that one may be, and what stands for none given
_LISTS = {
    "input_size": (1, None),
    "kernel": (1, None),
    "strides": (1, 1),
    "dilations": (1, 1),
    "pads_begin": (0, 0),
    "pads_end": (0, 0),
    "output_padding": (0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A forward Convolution or ConvTranspose of 1 to 3 spatial axes. Sizes are counts of elements.

    Whatever is left out is as if it were not there: strides and dilations of 1, no pads, one group. Raises ValueError
    or TypeError that names the field, its value and the rule.
    """

    name: str
    op: str = "Convolution"
    """"Convolution" or "ConvTranspose"."""
    batch: int
    channels: int
    """Channels of the input, all groups."""
    filters: int
    """Channels of the output, all groups."""
    input_size: Shape
    """The input's spatial size."""
    kernel: Shape
    strides: Shape = ()
    dilations: Shape = ()
    pads_begin: Shape = ()
    pads_end: Shape = ()
    groups: int = 1
    output_padding: Shape = ()
    """For ConvTranspose alone: elements at the end of the output that the strides leave open."""
    dtype: str = "f32"
    """The type that it is computed in: "f32", "f16" or "bf16"."""
    count: int = 1
    """How many layers of the network are like this."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isprintable() or not self.name:
            raise ValueError(f"name: got {show(self.name)}, expected a line of printable text")
        parse_choice("op", self.op, OPS)
        for field in ("batch", "channels", "filters", "groups", "count"):
            self._set(field, parse_int(field, getattr(self, field), low=1))
        self._set("dtype", parse_dtype(self.dtype))
        rank = len(parse_ints("kernel", self.kernel, low=1))
        if not 1 <= rank <= MAX_SPATIAL_RANK:
            raise ValueError(f"kernel: {self.kernel} has {rank} entries, expected 1 to {MAX_SPATIAL_RANK}")
        for field, (low, default) in _LISTS.items():
            self._set(field, _sizes(field, getattr(self, field), low, default, rank))
        self._check()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check(self) -> None:
        for field in ("channels", "filters"):
            if getattr(self, field) % self.groups:
                raise ValueError(f"{field}: {getattr(self, field)} is no multiple of groups, which is {self.groups}")
        if any(self.output_padding) and not self.transposed:
            raise ValueError(f"output_padding: {self.output_padding}, expected none: only ConvTranspose has it")
        if min(self.output_size) < 1:
            raise ValueError(
                f"input_size: {self.input_size} gives an output of {self.output_size}: kernel {self.kernel}, dilations "
                f"{self.dilations}, pads {self.pads_begin} and {self.pads_end}; expected at least one element"
            )

    @property
    def transposed(self) -> bool:
        """Whether it is a ConvTranspose."""
        return self.op == "ConvTranspose"

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def output_size(self) -> Shape:
        """The output's spatial size."""
        columns = (self.input_size, self.kernel, self.strides, self.dilations, self.pads_begin, self.pads_end)
        axes = zip(*columns, self.output_padding, strict=True)
        if self.transposed:
            return tuple(s * (i - 1) + (k - 1) * d + 1 - b - e + o for i, k, s, d, b, e, o in axes)
        return tuple((i + b + e - (k - 1) * d - 1) // s + 1 for i, k, s, d, b, e, _ in axes)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has filters of its own."""
        return self.groups == self.channels > 1

    @property
    def is_stem(self) -> bool:
        """Whether it is a network's first layer: a convolution of hardly any channels, usually three colours."""
        return not self.transposed and self.groups == 1 and self.channels <= 4

    @property
    def is_wide(self) -> bool:
        """Whether it is dense, with 64 channels or more on both sides."""
        return self.groups == 1 and min(self.channels, self.filters) >= 64

    def gradients(
        self, data_format: str = "NXC", filter_format: str | None = None, dtype: str | None = None
    ) -> tuple[LayerGradient, LayerGradient]:
        """The weights gradient and the data gradient, for tensors in these layouts and of this type.

        Without `filter_format`: XIO beside NXC, OIX beside NCX; without `dtype` the layer's own. ValueError where there
        is no such layout or type.
        """
        filters, data = (self.select(kind, data_format, filter_format, dtype) for kind in GRADIENTS)
        return filters, data

    def select(
        self, kind: str, data_format: str = "NXC", filter_format: str | None = None, dtype: str | None = None
    ) -> LayerGradient:
        """One of KINDS, as in `gradients`. "forward" is the layer's output, by the operator that is the same sum: the
        other family's data gradient. Without `filter_format`, the forward of ConvTranspose has XOI and IOX.
        """
        parse_choice("kind", kind, KINDS)
        parse_choice("data_format", data_format, DATA_FORMATS)
        if filter_format is None:
            usual = DEFAULT_FILTERS[data_format]
            filter_format = other_name(usual, False) if kind == "forward" and self.transposed else usual
        parse_choice("filter_format", filter_format, filter_formats(self.transposed))
        dtype = self.dtype if dtype is None else parse_dtype(dtype)
        return make_gradient(self, kind, data_format, filter_format, dtype)


@dataclass(frozen=True)
class LayerGradient:
    """One of KINDS of a layer: an operator of the package with the shapes and the type of its two inputs."""

    layer: Layer
    kind: str
    """"filters", "data" or "forward"."""
    operator: Operator
    shapes: tuple[Shape, Shape]
    dtype: str
    epilogue: Epilogue = PLAIN

    @property
    def problem(self) -> Problem:
        """The gradient with every number resolved."""
        return replace(self.operator.problem(*self.shapes, dtype=self.dtype), epilogue=self.epilogue)


def kind_of(problem: Problem) -> str:
    """Which of GRADIENTS a problem is."""
    return "filters" if problem.gradient is Gradient.FILTER else "data"


def make_gradient(layer: Layer, kind: str, data_format: str, filter_format: str, dtype: str) -> LayerGradient:
    """One of KINDS, for tensors in these layouts and of this type."""
    forward = kind == "forward"
    axes = filter_formats(layer.transposed)[filter_format]
    c, o = (layer.filters, layer.channels) if layer.transposed else (layer.channels, layer.filters)
    weights = make_shape(axes, {"C": c // layer.groups, "O": o}, layer.kernel)
    source = make_shape(data_format, {"N": layer.batch, "C": layer.channels}, layer.input_size)
    result = make_shape(data_format, {"N": layer.batch, "C": layer.filters}, layer.output_size)
    attributes: dict[str, Any] = {
        "strides": layer.strides,
        "dilations": layer.dilations,
        "pads_begin": layer.pads_begin,
        "pads_end": layer.pads_end,
        "groups": layer.groups,
        "data_format": data_format,
        "filter_format": other_name(filter_format, layer.transposed) if forward else filter_format,
    }
    if layer.transposed and not forward:
        attributes["output_padding"] = layer.output_padding
    if kind == "filters":
        attributes["filter_shape"] = weights
    elif layer.transposed == forward:
        attributes["output_shape"] = result if forward else source
    family = OPS[layer.transposed != forward]
    operator: type[Operator] = getattr(spec, f"{family}Backprop{'Filters' if kind == 'filters' else 'Data'}")
    shapes = {"filters": (source, result), "data": (result, weights), "forward": (source, weights)}
    return LayerGradient(layer, kind, operator(**attributes), shapes[kind], dtype)


def _sizes(field: str, value: Collection[int], low: int, default: int | None, rank: int) -> Shape:
    """A list with an entry for each axis of the kernel."""
    sizes = parse_ints(field, value, low=low)
    if not sizes and default is not None:
        return (default,) * rank
    check_count(field, sizes, rank, "one for each entry of kernel")
    return sizes
