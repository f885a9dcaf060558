"""A layer's gradient as an operator of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvmconvgrad
from tvmconvgrad.operators import Compiled
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.layouts import CONV_TRANSPOSE_FILTERS, CONVOLUTION_FILTERS, make_shape
from tvmconvgrad.spec.values import Shape
from tvmconvgrad.targets import Target

if TYPE_CHECKING:
    from tvmconvgrad.layers.layer import Layer

KINDS = ("filters", "data")


@dataclass(frozen=True)
class LayerGradient:
    """One gradient of a layer: an operator of the package with the shapes and the type of its two inputs."""

    layer: Layer
    kind: str
    """"filters" or "data"."""
    operator: Compiled
    shapes: tuple[Shape, Shape]
    dtype: str

    @property
    def problem(self) -> Problem:
        """The gradient with every number resolved."""
        return self.operator.problem(*self.shapes, dtype=self.dtype)

    def compile(self, target: Target | str | None = None, schedule: str | None = None) -> Kernel:
        """The kernel, from the cache or built now."""
        return self.operator.compile(*self.shapes, dtype=self.dtype, target=target, schedule=schedule)


def kind_of(problem: Problem) -> str:
    """Which of KINDS a gradient is."""
    return "filters" if problem.gradient is Gradient.FILTER else "data"


def make_gradient(layer: Layer, kind: str, data_format: str, filter_format: str, dtype: str) -> LayerGradient:
    """The gradient by the filters or by the data, for tensors in these layouts and of this type."""
    axes = (CONV_TRANSPOSE_FILTERS if layer.transposed else CONVOLUTION_FILTERS)[filter_format]
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
        "filter_format": filter_format,
    }
    if layer.transposed:
        attributes["output_padding"] = layer.output_padding
    if kind == "filters":
        attributes["filter_shape"] = weights
    elif not layer.transposed:
        attributes["output_shape"] = source
    operator: type[Compiled] = getattr(tvmconvgrad, f"{layer.op}Backprop{kind.capitalize()}")
    shapes = (source, result) if kind == "filters" else (result, weights)
    return LayerGradient(layer, kind, operator(**attributes), shapes, dtype)
