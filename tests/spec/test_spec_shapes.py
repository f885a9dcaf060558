"""Every rule of shapes broken, one at a time; and what the legal edges come to."""
# ruff: noqa: E501 - a table reads by its rows

from __future__ import annotations

import re

import pytest

from tvmconvgrad.spec import (
    ConvolutionBackpropData,
    ConvolutionBackpropFilters,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvTransposeBackpropData,
    ConvTransposeBackpropFilters,
    ConvTransposeBackwardData,
    ConvTransposeBackwardWeights,
)

CF, CW = ConvolutionBackpropFilters, ConvolutionBackwardWeights
CD, CB = ConvolutionBackpropData, ConvolutionBackwardData
TF, TW = ConvTransposeBackpropFilters, ConvTransposeBackwardWeights
TD, TB = ConvTransposeBackpropData, ConvTransposeBackwardData

# 3x3, stride 2, pads 1, two groups: x has 56x56 positions and 64 channels, y 28x28 and 128
ATTRIBUTES = {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1), "groups": 2}
BIG, SMALL = (8, 56, 56, 64), (8, 28, 28, 128)
FILTER, TRANSPOSED_FILTER = (3, 3, 32, 128), (3, 3, 128, 32)
GOOD = {
    CF: ({"filter_shape": FILTER}, BIG, SMALL),
    CW: ({"weights_shape": FILTER}, BIG, SMALL),
    CD: ({"output_shape": BIG}, SMALL, FILTER),
    CB: ({"dst_shape": BIG}, SMALL, FILTER),
    TF: ({"filter_shape": TRANSPOSED_FILTER}, SMALL, BIG),
    TW: ({"weights_shape": TRANSPOSED_FILTER}, SMALL, BIG),
    TD: ({}, BIG, TRANSPOSED_FILTER),
    TB: ({}, BIG, TRANSPOSED_FILTER),
}
SAME = {"auto_pad": "same_lower"}
VALID = {"auto_pad": "valid"}

# operator, attributes that differ, inputs that differ, start of the message, what else it holds
BROKEN = [
    # ranks and plain nonsense, in the name of the tensor
    (CF, {}, {0: (8, 56, 64)}, "input_forward: (8, 56, 64) has 3 entries, expected 4, for NXC with 2 spatial", ""),
    (CW, {}, {0: (8, 56, 64)}, "src: (8, 56, 64) has 3 entries, expected 4", "one per entry of strides"),
    (CF, {}, {1: (8, 28, 28, 1, 128)}, "output_delta: (8, 28, 28, 1, 128) has 5 entries, expected 4", ""),
    (CB, {}, {0: (8, 28, 128)}, "diff_dst: (8, 28, 128) has 3 entries, expected 4", ""),
    (CB, {}, {1: (3, 32, 128)}, "weights: (3, 32, 128) has 3 entries, expected 4, for XIO", ""),
    (CD, {}, {1: (3, 32, 128)}, "filter: (3, 32, 128) has 3 entries, expected 4, for XIO", ""),
    (TF, {}, {0: (8, 28, 28, -128)}, "input_forward: got -128 in (8, 28, 28, -128), expected a non-negative", ""),
    (CF, {}, {0: None}, "input_forward: expected a sequence of ints, got None", ""),
    (CF, {}, {2: (3, 3, 32)}, "filter_shape: (3, 3, 32) has 3 entries, expected 4", ""),
    (CW, {}, {2: (3, 3, 32)}, "weights_shape: (3, 3, 32) has 3 entries, expected 4", ""),
    (CB, {}, {2: (3, 3, 32)}, "dst_shape: (3, 3, 32) has 3 entries, expected 4", ""),
    (TD, {}, {2: SMALL}, "shape_input: ConvTransposeBackpropData takes none", ""),
    (TB, {}, {2: SMALL}, "shape_input: ConvTransposeBackwardData takes none", ""),
    # no shape at all
    (CF, {"filter_shape": None}, {}, "filter_shape: missing; give it as attribute or as third input", ""),
    (CW, {"weights_shape": None}, {}, "weights_shape: missing; give it as attribute or as third input", ""),
    (TF, {"filter_shape": None}, {}, "filter_shape: missing; give it as attribute or as third input", ""),
    (TW, {"weights_shape": None}, {}, "weights_shape: missing", ""),
    (CD, {"output_shape": None, **SAME}, {}, "output_shape: missing; required with auto_pad same_lower", ""),
    (CB, {"dst_shape": None, **SAME}, {}, "dst_shape: missing; required with auto_pad same_lower", ""),
    # batch
    (CF, {}, {1: (7, 28, 28, 128)}, "output_delta: shape (7, 28, 28, 128) does not fit: axis 0 (batch, NXC) is 7", "expected 8 as in input_forward"),
    (CW, {}, {1: (7, 28, 28, 128)}, "diff_dst: shape (7, 28, 28, 128) does not fit: axis 0", "expected 8 as in src"),
    (TF, {}, {1: (7, 56, 56, 64)}, "output_delta: ", "is 7, expected 8 as in input_forward"),
    (CD, {"output_shape": (7, 56, 56, 64)}, {}, "output_shape: ", "is 7, expected 8 as in output_delta"),
    (CB, {"dst_shape": (7, 56, 56, 64)}, {}, "dst_shape: ", "is 7, expected 8 as in diff_dst"),
    # groups divide both channel counts
    (CF, {}, {0: (8, 56, 56, 63)}, "input_forward: ", "axis 3 (channels, NXC) is 63, expected a multiple of groups 2"),
    (CF, {}, {1: (8, 28, 28, 127)}, "output_delta: ", "axis 3 (channels, NXC) is 127, expected a multiple of groups 2"),
    (TW, {}, {0: (8, 28, 28, 127)}, "src: ", "is 127, expected a multiple of groups 2"),
    (TW, {}, {1: (8, 56, 56, 63)}, "diff_dst: ", "is 63, expected a multiple of groups 2"),
    (CD, {}, {0: (8, 28, 28, 127)}, "output_delta: ", "is 127, expected a multiple of groups 2"),
    (TD, {}, {0: (8, 56, 56, 63)}, "output_delta: ", "is 63, expected a multiple of groups 2"),
    (TD, {}, {1: (3, 3, 127, 32)}, "filter: ", "axis 2 (input channels, XIO) is 127, expected a multiple of groups 2"),
    # the filter's channels
    (CF, {"filter_shape": (3, 3, 64, 128)}, {}, "filter_shape: shape (3, 3, 64, 128) does not fit: axis 2 (input channels, XIO) is 64", "expected 32 = 64/2, the channels of input_forward over groups"),
    (CW, {"weights_shape": (3, 3, 64, 128)}, {}, "weights_shape: ", "expected 32 = 64/2, the channels of src over groups"),
    (CW, {"weights_shape": None, "filter_shape": (3, 3, 64, 128)}, {}, "filter_shape: ", "expected 32 = 64/2, the channels of src over groups"),
    (CF, {"filter_shape": None, "weights_shape": (3, 3, 64, 128)}, {}, "weights_shape: ", "expected 32 = 64/2"),
    (CF, {}, {2: (3, 3, 32, 64)}, "filter_shape: ", "axis 3 (output channels, XIO) is 64, expected 128, the channels of output_delta"),
    (TF, {"filter_shape": FILTER}, {}, "filter_shape: ", "axis 2 (input channels, XIO) is 32, expected 128, the channels of input_forward"),
    (TF, {"filter_shape": (3, 3, 128, 64)}, {}, "filter_shape: ", "axis 3 (output channels, XIO) is 64, expected 32 = 64/2, the channels of output_delta over groups"),
    (CD, {}, {1: (3, 3, 32, 64)}, "filter: ", "axis 3 (output channels, XIO) is 64, expected 128, the channels of output_delta"),
    (CB, {}, {1: (3, 3, 32, 64)}, "weights: ", "expected 128, the channels of diff_dst"),
    (CD, {"output_shape": (8, 56, 56, 32)}, {}, "output_shape: ", "axis 3 (channels, NXC) is 32, expected 64 = 32*2, the input channels of filter times groups"),
    (TB, {}, {1: (3, 3, 128, 64)}, "weights: ", "is 64, expected 32 = 64/2, the channels of diff_dst over groups"),
    # the kernel
    (CF, {"filter_shape": (3, 0, 32, 128)}, {}, "filter_shape: ", "axis 1 (spatial, XIO) is 0, expected at least 1"),
    (CD, {}, {1: (0, 3, 32, 128)}, "filter: ", "axis 0 (spatial, XIO) is 0, expected at least 1"),
    (CF, {"filter_shape": (3, 59, 32, 128)}, {}, "filter_shape: ", "axis 1 (spatial, XIO) is 59, expected at most 58 = 56 + 1 + 1, from input_forward's 56, pads_begin 1, pads_end 1"),
    (CF, {"dilations": (1, 29)}, {}, "filter_shape: ", "axis 1 (spatial, XIO) is 3, expected at most 58 = 56 + 1 + 1 for its span of 59"),
    (TD, {**VALID}, {1: (57, 3, 128, 32)}, "filter: ", "axis 0 (spatial, XIO) is 57, expected at most 56 = 56 + 0 + 0, from output_delta's 56, auto_pad valid"),
    # spatial sizes: a Convolution's weights gradient, judged by x
    (CF, {}, {1: (8, 27, 28, 128)}, "output_delta: shape (8, 27, 28, 128) does not fit: axis 1 (spatial, NXC) is 27", "expected 28 = (56 + 1 + 1 - 3)//2 + 1, from input_forward's 56, pads_begin 1, pads_end 1, kernel 3, dilations 1, strides 2"),
    (CW, {}, {1: (8, 28, 29, 128)}, "diff_dst: ", "axis 2 (spatial, NXC) is 29, expected 28 = (56 + 1 + 1 - 3)//2 + 1, from src's 56"),
    (CF, {"dilations": (3, 1)}, {}, "output_delta: ", "is 28, expected 26 = (56 + 1 + 1 - 7)//2 + 1, from input_forward's 56, pads_begin 1, pads_end 1, kernel 3, dilations 3"),
    (CF, {**VALID}, {}, "output_delta: ", "is 28, expected 27 = (56 + 0 + 0 - 3)//2 + 1, from input_forward's 56, auto_pad valid"),
    (CF, {**SAME}, {1: (8, 28, 27, 128)}, "output_delta: ", "axis 2 (spatial, NXC) is 27, expected 28 = ceil(56/2), from input_forward's 56, auto_pad same_lower"),
    (CF, {}, {1: (8, 0, 28, 128)}, "output_delta: ", "is 0, expected 28"),
    # a Convolution's data gradient, judged by y
    (CD, {"output_shape": (8, 57, 56, 64)}, {}, "output_shape: shape (8, 57, 56, 64) does not fit: axis 1 (spatial, NXC) is 57", "expected 55 to 56 = 2*(28 - 1) + 3 - 1 - 1 + (0 to 1), from output_delta's 28"),
    (CB, {"dst_shape": (8, 56, 54, 64)}, {}, "dst_shape: ", "axis 2 (spatial, NXC) is 54, expected 55 to 56"),
    (CD, {"strides": (1, 1)}, {}, "output_shape: ", "is 56, expected 28 = 1*(28 - 1) + 3 - 1 - 1, from output_delta's 28"),
    (CD, {**VALID}, {2: (8, 56, 56, 64)}, "output_shape: ", "is 56, expected 57 to 58 = 2*(28 - 1) + 3 - 0 - 0 + (0 to 1), from output_delta's 28, auto_pad valid"),
    (CD, {**SAME}, {2: (8, 54, 56, 64)}, "output_shape: ", "is 54, expected 55 to 56, so that ceil(x/2) = 28, from output_delta's 28, auto_pad same_lower"),
    (CD, {"output_padding": (0, 1)}, {}, "output_shape: ", "axis 1 (spatial, NXC) is 56, expected 55 = 2*(28 - 1) + 3 - 1 - 1 + 0, from output_delta's 28, pads_begin 1, pads_end 1, kernel 3, dilations 1, strides 2, output_padding 0"),
    (CB, {"output_padding": (1, 5)}, {}, "dst_shape: ", "axis 2 (spatial, NXC) is 56, expected 60 = 2*(28 - 1) + 3 - 1 - 1 + 5"),
    (CD, {}, {0: (8, 0, 28, 128), 2: (8, 0, 56, 64)}, "output_delta: ", "axis 1 (spatial, NXC) is 0, expected at least 1"),
    (CD, {"output_shape": None, "pads_end": (99, 1)}, {}, "output_delta: ", "axis 1 (spatial, NXC) is 28, for which output_shape cannot be inferred: it would be -43 with pads 1 and 99"),
    # the ConvTranspose operators
    (TF, {}, {1: (8, 54, 56, 64)}, "output_delta: ", "axis 1 (spatial, NXC) is 54, expected at least 55 = 2*(28 - 1) + 3 - 1 - 1, from input_forward's 28"),
    (TF, {"output_padding": (1, 0)}, {}, "output_delta: ", "axis 2 (spatial, NXC) is 56, expected 55 = 2*(28 - 1) + 3 - 1 - 1 + 0, from input_forward's 28"),
    (TW, {**SAME}, {1: (8, 58, 56, 64)}, "diff_dst: ", "is 58, expected 55 to 56, so that ceil(x/2) = 28, from src's 28, auto_pad same_lower"),
    (TF, {**VALID}, {}, "output_delta: ", "is 56, expected at least 57 = 2*(28 - 1) + 3 - 0 - 0, from input_forward's 28, auto_pad valid"),
    (TD, {"output_padding": (1, 0)}, {}, "output_delta: ", "axis 2 (spatial, NXC) is 56, expected 55 or 57, which are 2*(x - 1) + 3 - 1 - 1 + 0, from pads_begin 1"),
    (TB, {"output_padding": (59, 1)}, {}, "diff_dst: ", "axis 1 (spatial, NXC) is 56, expected 58 or 60, which are 2*(x - 1) + 3 - 1 - 1 + 59"),
    (TD, {"output_padding": (0, 0), "strides": (9, 9), **SAME}, {1: (1, 1, 128, 32)}, "output_delta: ", "axis 1 (spatial, NXC) is 56, expected 55 = 9*(7 - 1) + 1 - 0 - 0 + 0, from auto_pad same_lower"),
]  # fmt: skip


def call(operator, attributes, inputs):
    """The problem of the good case, with some attributes and inputs (0, 1, 2: the shape) exchanged."""
    extra, first, second = GOOD[operator]
    arguments = {0: first, 1: second, 2: None, **inputs}
    return operator(**{**ATTRIBUTES, **extra, **attributes}).problem(*(arguments[i] for i in range(3)))


@pytest.mark.parametrize("operator", GOOD)
def test_the_good_case_is_good(operator):
    problem = call(operator, {}, {})
    assert (problem.x_shape, problem.y_shape) == (BIG, SMALL)
    assert problem.filter_shape == (TRANSPOSED_FILTER if problem.transposed else FILTER)
    assert problem.input_shapes == GOOD[operator][1:]


@pytest.mark.parametrize(
    ("operator", "attributes", "inputs", "start", "rest"),
    BROKEN,
    ids=[f"{i}-{c[0].__name__}" for i, c in enumerate(BROKEN)],
)
def test_broken_rule(operator, attributes, inputs, start, rest):
    with pytest.raises((ValueError, TypeError)) as caught:
        call(operator, attributes, inputs)
    message = str(caught.value)
    assert message.startswith(start)
    assert rest in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data_format", "filter_format", "first", "second", "shape", "message"),
    [
        (
            "NCX",
            "OIX",
            (8, 64, 56, 56),
            (8, 128, 56, 28),
            (128, 32, 3, 3),
            "axis 2 (spatial, NCX) is 56, expected 28",
        ),
        ("NCX", "OIX", (8, 63, 56, 56), (8, 128, 28, 28), (128, 32, 3, 3), "axis 1 (channels, NCX) is 63"),
        (
            "NCX",
            "OIX",
            (8, 64, 56, 56),
            (8, 128, 28, 28),
            (129, 32, 3, 3),
            "axis 0 (output channels, OIX) is 129",
        ),
        (
            "NXC",
            "OIX",
            (8, 56, 56, 64),
            (8, 28, 28, 128),
            (128, 33, 3, 3),
            "axis 1 (input channels, OIX) is 33",
        ),
        ("NXC", "OIX", (8, 56, 56, 64), (8, 28, 28, 128), (128, 32, 3, 99), "axis 3 (spatial, OIX) is 99"),
    ],
)
def test_axes_are_named_in_the_layout(data_format, filter_format, first, second, shape, message):
    op = CF(**ATTRIBUTES, data_format=data_format, filter_format=filter_format)
    with pytest.raises(ValueError, match=re.escape(message)):
        op.problem(first, second, shape)


@pytest.mark.parametrize("operator", GOOD)
@pytest.mark.parametrize("dtype", ["f64", "float", "F32", float, int, None, 32, "", "torch.float64", object()])
def test_bad_dtype(operator, dtype):
    extra, first, second = GOOD[operator]
    with pytest.raises(ValueError, match=r"^dtype: .* is not supported, expected f32, f16 or bf16$"):
        operator(**ATTRIBUTES, **extra).problem(first, second, dtype=dtype)


def test_the_shape_input_wins_over_the_attribute():
    wrong = (9, 9, 9, 9)
    assert call(CF, {"filter_shape": wrong}, {2: FILTER}) == call(CF, {}, {})
    assert call(TW, {"weights_shape": wrong}, {2: list(TRANSPOSED_FILTER)}) == call(TW, {}, {})
    assert call(CD, {"output_shape": (8, 56, 56, 64)}, {2: (8, 55, 56, 64)}).output_shape == (8, 55, 56, 64)
    with pytest.raises(ValueError, match=r"filter_shape: shape \(9, 9, 9, 9\)"):
        call(CF, {"filter_shape": FILTER}, {2: wrong})


def line(strides=1, dilations=1, pads=(0, 0), **attributes):
    """Attributes of one spatial axis, in NCX."""
    explicit = {} if "auto_pad" in attributes else {"pads_begin": [pads[0]], "pads_end": [pads[1]]}
    return {"strides": [strides], "dilations": [dilations], "data_format": "NCX", **explicit, **attributes}


EMPTY = [
    # batch, channels of either side: any of them may be 0
    (CF, line(filter_shape=(3, 2, 5)), (0, 2, 7), (0, 5, 5), (3, 2, 5)),
    (CF, line(filter_shape=(3, 0, 5)), (2, 0, 7), (2, 5, 5), (3, 0, 5)),
    (CF, line(filter_shape=(3, 2, 0)), (2, 2, 7), (2, 0, 5), (3, 2, 0)),
    (CF, line(filter_shape=(3, 0, 0), groups=3), (2, 0, 7), (2, 0, 5), (3, 0, 0)),
    (CD, line(), (0, 4, 5), (3, 2, 4), (0, 2, 7)),
    (CD, line(), (1, 0, 5), (3, 2, 0), (1, 2, 7)),
    (CD, line(), (1, 4, 5), (3, 0, 4), (1, 0, 7)),
    (TF, line(filter_shape=(3, 4, 0)), (2, 4, 5), (2, 0, 7), (3, 4, 0)),
    (TD, line(), (0, 2, 7), (3, 4, 2), (0, 4, 5)),
    (TD, line(), (1, 0, 7), (3, 4, 0), (1, 4, 5)),
    # y = 0: all that the kernel meets is padding
    (CF, line(pads=(2, 1), filter_shape=(3, 2, 5)), (1, 2, 0), (1, 5, 1), (3, 2, 5)),
    (CD, line(pads=(2, 1)), (1, 5, 1), (3, 2, 5), (1, 2, 0)),
    (TF, line(pads=(2, 1), filter_shape=(3, 5, 2)), (1, 5, 1), (1, 2, 0), (3, 5, 2)),
    (TD, line(pads=(2, 1)), (1, 2, 0), (3, 5, 2), (1, 5, 1)),
    (CF, line(2, auto_pad="same_upper", filter_shape=(3, 2, 5)), (1, 2, 0), (1, 5, 0), (3, 2, 5)),
    (CD, line(2, auto_pad="same_upper", output_shape=(1, 2, 0)), (1, 5, 0), (3, 2, 5), (1, 2, 0)),
    (TD, line(2, auto_pad="same_upper"), (1, 2, 0), (3, 5, 2), (1, 5, 0)),
    # x = 0: only where output_padding, or a ConvTranspose's shapes, make up for it
    (CD, line(2, output_padding=[1]), (1, 5, 0), (3, 2, 5), (1, 2, 2)),
    (TF, line(2, filter_shape=(3, 5, 2)), (1, 5, 0), (1, 2, 2), (3, 5, 2)),
    (TD, line(2, output_padding=[1]), (1, 2, 2), (3, 5, 2), (1, 5, 0)),
]


@pytest.mark.parametrize(("operator", "attributes", "first", "second", "output"), EMPTY)
def test_empty_tensors_are_legal(operator, attributes, first, second, output):
    assert operator(**attributes).problem(first, second).output_shape == output


LEGAL = [
    # what it shows, operator, attributes, first, second, (y, x, pads_begin, pads_end)
    ("pads of the kernel's size", CF, line(pads=(3, 4), filter_shape=(3, 1, 1)), (1, 1, 5), (1, 1, 10), (5, 10, 3, 4)),
    ("kernel larger than the input", CF, line(pads=(2, 2), filter_shape=(5, 1, 1)), (1, 1, 1), (1, 1, 1), (1, 1, 2, 2)),
    ("stride larger than the kernel", CF, line(5, filter_shape=(2, 1, 1)), (1, 1, 11), (1, 1, 2), (11, 2, 0, 0)),
    ("elements that no tap reaches", CD, line(3, output_shape=(1, 1, 9)), (1, 1, 3), (1, 1, 1), (9, 3, 0, 0)),
    ("y inferred", CD, line(3, 2, (1, 0)), (1, 1, 4), (3, 1, 1), (13, 4, 1, 0)),
    ("x inferred, output_padding", CD, line(3, 2, (1, 0), output_padding=[2]), (1, 1, 4), (3, 1, 1), (15, 4, 1, 0)),
    ("y inferred, output_padding >= stride", CD, line(output_padding=[4]), (1, 1, 4), (3, 1, 1), (10, 4, 0, 0)),
    ("x inferred, valid", CD, line(2, auto_pad="valid"), (1, 1, 4), (3, 1, 1), (9, 4, 0, 0)),
    ("y given, output_padding >= stride", CD, line(2, output_padding=[3], output_shape=(1, 1, 12)), (1, 1, 4), (3, 1, 1), (12, 4, 0, 0)),
    ("any output_padding by the shapes", TF, line(2, filter_shape=(3, 1, 1)), (1, 1, 4), (1, 1, 99), (99, 4, 0, 0)),
    ("valid ConvTranspose", TF, line(2, auto_pad="valid", filter_shape=(3, 1, 1)), (1, 1, 4), (1, 1, 9), (9, 4, 0, 0)),
    ("x inferred", TD, line(2, pads=(1, 0)), (1, 1, 9), (3, 1, 1), (9, 4, 1, 0)),
    ("y inferred, rest", TD, line(3), (1, 1, 8), (3, 1, 1), (8, 2, 0, 0)),
    ("y inferred, output_padding", TD, line(3, output_padding=[2]), (1, 1, 8), (3, 1, 1), (8, 2, 0, 0)),
    ("x inferred, output_padding >= stride", TD, line(2, output_padding=[6]), (1, 1, 13), (3, 1, 1), (13, 3, 0, 0)),
    ("y inferred, same", TD, line(2, auto_pad="same_lower"), (1, 1, 7), (2, 1, 1), (7, 4, 1, 0)),
    ("y inferred, same, output_padding", TD, line(2, auto_pad="same_lower", output_padding=[1]), (1, 1, 7), (2, 1, 1), (7, 4, 1, 1)),
    ("output_padding enters the total", CD, line(2, auto_pad="same_upper", output_padding=[1], output_shape=(1, 1, 6)), (1, 1, 3), (3, 1, 1), (6, 3, 1, 1)),
    ("total is not negative", CF, line(3, auto_pad="same_upper", filter_shape=(1, 1, 1)), (1, 1, 6), (1, 1, 2), (6, 2, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "attributes", "first", "second", "expected"),
    [c[1:] for c in LEGAL],
    ids=[c[0] for c in LEGAL],
)
def test_legal_edges(operator, attributes, first, second, expected):
    geometry = operator(**attributes).problem(first, second).geometry
    assert (*geometry.x, *geometry.y, *geometry.pads_begin, *geometry.pads_end) == expected


HUGE = 2**62
TOO_LARGE = [
    (CF, line(filter_shape=(1, 1, 1)), (HUGE, 1, 1), (HUGE, 1, 1), "input_forward: shape .* of f32 exceeds 2\\*\\*63 - 1 bytes"),
    (CW, line(filter_shape=(1, 1, 1)), (2, 1, HUGE), (2, 1, HUGE), "src: shape .* of f32 exceeds"),
    (CD, line(HUGE), (1, 1, 4), (1, 1, 1), "strides 4611686018427387904: the padded size exceeds"),
    (CF, line(HUGE, pads=(HUGE, HUGE), filter_shape=(1, 1, 1)), (1, 1, 1), (1, 1, 3), "pads_begin .*the padded size exceeds"),
    (CB, line(output_padding=[2**63 - 1]), (1, 1, 4), (1, 1, 1), "the padded size exceeds"),
    (TF, line(HUGE, filter_shape=(1, 1, 1)), (1, 1, 4), (1, 1, 2**63 - 1), "output_delta: .*, expected at least 13835058055282163713 = "),
    (TF, line(2**63 - 1, HUGE, filter_shape=(3, 1, 1)), (1, 1, 0), (1, 1, 2), "the padded size exceeds"),
    (CD, line(groups=HUGE), (0, 0, 4), (1, 4, 0), "input_delta: shape .* exceeds"),
    (CD, line(groups=HUGE), (1, 0, 4), (1, 4, 0), "input_delta: shape .* exceeds"),
    (CF, line(dilations=HUGE, pads=(HUGE, HUGE), filter_shape=(3, 1, 1)), (1, 1, 1), (1, 1, 1), "the padded size exceeds"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "attributes", "first", "second", "message"), TOO_LARGE)
def test_what_does_not_fit_s64(operator, attributes, first, second, message):
    with pytest.raises(ValueError, match=message):
        operator(**attributes).problem(first, second)


def test_bytes_are_counted_in_the_type():
    op, elements = CF(**line(filter_shape=(1, 1, 1))), 2**61
    assert op.problem((elements, 1, 1), (elements, 1, 1), dtype="f16").x_shape == (elements, 1, 1)
    with pytest.raises(ValueError, match="exceeds 2\\*\\*63 - 1 bytes"):
        op.problem((elements, 1, 1), (elements, 1, 1), dtype="f32")
