"""The package's layers in the tests' words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import tvmconvgrad as cg
from tests.support.cases.convolution import Convolution
from tvmconvgrad.layers import Layer, LayerGradient


def convolution(layer: Layer) -> Convolution:
    """The layer's numbers."""
    c, o = (layer.filters, layer.channels) if layer.transposed else (layer.channels, layer.filters)
    x, y = (layer.output_size, layer.input_size) if layer.transposed else (layer.input_size, layer.output_size)
    steps = layer.strides, layer.dilations, layer.pads_begin, layer.pads_end
    return Convolution(layer.batch, layer.groups, c, o, x, y, layer.kernel, *steps)


def operator_of(gradient: LayerGradient) -> Any:
    """The operator that users call, with the attributes of a layer's gradient."""
    operator = gradient.operator
    values = {field.name: getattr(operator, field.name) for field in fields(operator) if field.init}
    return getattr(cg, operator.name)(**{name: value for name, value in values.items() if value is not None})
