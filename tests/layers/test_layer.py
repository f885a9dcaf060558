"""Layers: what follows from their fields, the problems of their gradients, and the words for fields that do not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tvmconvgrad.layers import Layer
from tvmconvgrad.spec import Gradient

STEM = Layer(
    name="stem",
    batch=2,
    channels=3,
    filters=8,
    input_size=(32, 30),
    kernel=(7, 5),
    strides=(2, 1),
    pads_begin=(3, 2),
    pads_end=(2, 2),
)
UP = Layer(
    name="up",
    op="ConvTranspose",
    batch=3,
    channels=8,
    filters=4,
    input_size=(5,),
    kernel=(3,),
    strides=(2,),
    dilations=(2,),
    pads_begin=(1,),
    groups=2,
    output_padding=(1,),
)


def test_what_is_left_out() -> None:
    layer = Layer(name="one", batch=1, channels=2, filters=3, input_size=(4, 4, 4), kernel=(1, 1, 1))
    assert (layer.op, layer.strides, layer.dilations, layer.groups) == ("Convolution", (1, 1, 1), (1, 1, 1), 1)
    assert layer.pads_begin == layer.pads_end == layer.output_padding == (0, 0, 0)
    assert layer.output_size == (4, 4, 4)


def test_output_sizes() -> None:
    assert STEM.output_size == (16, 30)  # (32 + 5 - 7)//2 + 1, 30 + 4 - 5 + 1
    assert UP.output_size == (13,)  # 2*4 + 5 - 1 + 1


def test_kinds() -> None:
    assert STEM.is_stem
    assert not STEM.is_depthwise
    depthwise = Layer(name="dw", batch=1, channels=4, filters=8, input_size=(5,), kernel=(3,), groups=4)
    assert depthwise.is_depthwise
    assert not depthwise.is_stem
    assert not UP.is_stem
    wide = dataclasses.replace(STEM, channels=64, filters=64)
    assert wide.is_wide
    assert not dataclasses.replace(wide, channels=63).is_wide
    assert not dataclasses.replace(wide, groups=2).is_wide


def test_gradients_of_a_convolution() -> None:
    filters, data = STEM.gradients()
    assert (filters.kind, data.kind) == ("filters", "data")
    assert filters.problem.operator == "ConvolutionBackpropFilters"
    assert filters.problem.input_shapes == ((2, 32, 30, 3), (2, 16, 30, 8))
    assert filters.problem.output_shape == (7, 5, 3, 8)
    assert data.problem.gradient is Gradient.DATA
    assert data.problem.input_shapes == ((2, 16, 30, 8), (7, 5, 3, 8))
    assert data.problem.output_shape == (2, 32, 30, 3)


def test_gradients_of_a_transposed_convolution() -> None:
    filters, data = UP.gradients("NCX", dtype="bf16")
    assert filters.problem.input_shapes == ((3, 8, 5), (3, 4, 13))
    assert filters.problem.output_shape == (2, 8, 3)  # OIX: O/groups, I, X
    assert filters.problem.dtype == "bf16"
    assert data.problem.operator == "ConvTransposeBackpropData"
    assert data.problem.gradient is Gradient.FORWARD
    assert data.problem.output_shape == (3, 8, 5)
    xoi, _ = UP.gradients("NXC", "XOI")
    assert xoi.problem.output_shape == (3, 2, 8)


def test_forwards_are_the_other_operators_data_gradients() -> None:
    forward = STEM.select("forward")
    assert (forward.kind, forward.problem.operator) == ("forward", "ConvTransposeBackpropData")
    assert forward.problem.input_shapes == ((2, 32, 30, 3), (7, 5, 3, 8))
    assert forward.problem.output_shape == (2, 16, 30, 8)
    up = UP.select("forward", "NCX", dtype="bf16")
    assert up.problem.operator == "ConvolutionBackpropData"
    assert up.problem.input_shapes == ((3, 8, 5), (8, 2, 3))  # PyTorch's (I, O/groups, X)
    assert up.problem.output_shape == (3, 4, 13)
    up = UP.select("forward", "NXC", "XIO")
    assert up.problem.filter_format == "XOI"
    assert up.problem.input_shapes == ((3, 5, 8), (3, 8, 2))  # (X, I, O/groups)
    with pytest.raises(ValueError, match="kind: got 'backward', expected 'filters' or 'data' or 'forward'"):
        UP.select("backward")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"name": ""}, ValueError, "name: got ''"),
        ({"name": "two\nlines"}, ValueError, "name: got"),
        ({"op": "Conv"}, ValueError, "op: got 'Conv', expected 'Convolution' or 'ConvTranspose'"),
        ({"batch": 0}, ValueError, "batch: got 0, expected a positive int"),
        ({"dtype": "f64"}, ValueError, "dtype: 'f64' is not supported, expected f32, f16 or bf16"),
        ({"channels": 2.0}, TypeError, "channels: got 2.0 of type float"),
        ({"kernel": ()}, ValueError, "kernel: () has 0 entries, expected 1 to 3"),
        ({"kernel": (1, 1, 1, 1)}, ValueError, "kernel: (1, 1, 1, 1) has 4 entries, expected 1 to 3"),
        ({"kernel": 3}, TypeError, "kernel: expected a sequence of ints, got 3"),
        ({"strides": (1,)}, ValueError, "strides: (1,) has 1 entries, expected 2, one for each entry of kernel"),
        ({"strides": (0, 1)}, ValueError, "strides: got 0 in (0, 1), expected a positive int"),
        ({"pads_end": (-1, 0)}, ValueError, "pads_end: got -1"),
        ({"groups": 2}, ValueError, "channels: 3 is no multiple of groups, which is 2"),
        ({"groups": 3}, ValueError, "filters: 8 is no multiple of groups, which is 3"),
        ({"output_padding": (1, 0)}, ValueError, "output_padding: (1, 0), expected none: only ConvTranspose has it"),
        ({"input_size": (1, 1)}, ValueError, "input_size: (1, 1) gives an output of (0, 1)"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], kind: type[Exception], words: str) -> None:
    fields = {name: getattr(STEM, name) for name in STEM.__dataclass_fields__}
    with pytest.raises(kind) as error:
        Layer(**{**fields, **changes})
    assert words in str(error.value)
