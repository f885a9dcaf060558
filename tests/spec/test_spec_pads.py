"""Pads and sizes: literal tables, oneDNN's and TensorFlow's formula, torch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmconvgrad.spec import (
    ConvolutionBackpropData,
    ConvolutionBackpropFilters,
    ConvTransposeBackpropData,
    ConvTransposeBackpropFilters,
)

# auto_pad, y, kernel, stride, dilation -> x, pads_begin, pads_end
TABLE = [
    # TensorFlow, conv_ops_test.py: SAME is same_upper
    ("same_upper", 4, 3, 1, 1, 4, 1, 1),
    ("same_upper", 3, 2, 1, 1, 3, 0, 1),
    ("same_upper", 4, 3, 2, 1, 2, 0, 1),
    ("same_upper", 3, 2, 2, 1, 2, 0, 1),
    ("same_upper", 4, 1, 2, 1, 2, 0, 0),
    # ImageNet stems in TensorFlow: 224, 7x7/2 -> 112 with 2 and 3; 299, 3x3/2 -> 150 with 1 and 1
    ("same_upper", 224, 7, 2, 1, 112, 2, 3),
    ("same_lower", 224, 7, 2, 1, 112, 3, 2),
    ("same_upper", 299, 3, 2, 1, 150, 1, 1),
    # oneDNN: x=4, y=12, stride 3, kernel 6 has begin 1; x=2, y=6, stride 3, kernel 3 has none
    ("same_upper", 12, 6, 3, 1, 4, 1, 2),
    ("same_lower", 12, 6, 3, 1, 4, 2, 1),
    ("same_lower", 6, 3, 3, 1, 2, 0, 0),
    # dilated: the kernel spans 5 and 9
    ("same_upper", 10, 3, 1, 2, 10, 2, 2),
    ("same_lower", 10, 2, 2, 8, 5, 4, 3),
    ("same_upper", 10, 2, 2, 8, 5, 3, 4),
    # the total is never negative
    ("same_lower", 7, 1, 3, 1, 3, 0, 0),
    ("same_upper", 9, 2, 4, 1, 3, 0, 1),
    # ONNX Runtime, conv_transpose_op_test.cc
    ("same_upper", 4, 2, 1, 1, 4, 0, 1),
    ("same_lower", 4, 2, 1, 1, 4, 1, 0),
    ("same_upper", 6, 3, 2, 1, 3, 0, 1),
    # valid: what is left over at the end is not read
    ("valid", 7, 3, 2, 1, 3, 0, 0),
    ("valid", 8, 3, 2, 1, 3, 0, 0),
    ("valid", 8, 3, 1, 3, 2, 0, 0),
    # none, with pads 2 and 1
    ("none", 7, 3, 2, 1, 4, 2, 1),
    ("none", 5, 3, 1, 2, 4, 2, 1),
    ("none", 1, 4, 5, 1, 1, 2, 1),
]


def geometries(auto_pad, x, kernel, stride, dilation, y, **more):
    """The geometry of all four operators for one spatial axis and one channel."""
    line = {
        "strides": [stride],
        "dilations": [dilation],
        "auto_pad": auto_pad,
        "pads_begin": [2],
        "pads_end": [1],
    }
    line.update(more)
    big, small, filter_shape = (1, x, 1), (1, y, 1), (kernel, 1, 1)
    return {
        "CF": ConvolutionBackpropFilters(**line, filter_shape=filter_shape).problem(big, small).geometry,
        "CD": ConvolutionBackpropData(**line, output_shape=big).problem(small, filter_shape).geometry,
        "TF": ConvTransposeBackpropFilters(**line, filter_shape=filter_shape).problem(small, big).geometry,
        "TD": ConvTransposeBackpropData(**line).problem(big, filter_shape).geometry,
    }


@pytest.mark.parametrize(("auto_pad", "x", "kernel", "stride", "dilation", "y", "begin", "end"), TABLE)
def test_pads(auto_pad, x, kernel, stride, dilation, y, begin, end):
    for name, geometry in geometries(auto_pad, x, kernel, stride, dilation, y).items():
        assert (geometry.x, geometry.y, geometry.k) == ((x,), (y,), (kernel,)), name
        assert (geometry.pads_begin, geometry.pads_end) == ((begin,), (end,)), name
        assert geometry.tap_extent == ((kernel - 1) * dilation + 1,)


@given(
    x=st.integers(1, 60),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 9),
    dilation=st.integers(1, 5),
    upper=st.booleans(),
)
def test_same_is_the_forward_convolutions_formula(x, kernel, stride, dilation, upper):
    # TensorFlow's, and oneDNN's infer_auto_pad (shape_infer.cpp): from y alone, by its rest modulo the stride
    extent = (kernel - 1) * dilation + 1
    total = max(0, extent - stride) if x % stride == 0 else max(0, extent - x % stride)
    y, less = (x + stride - 1) // stride, total // 2
    expected = (less, total - less) if upper else (total - less, less)
    for name, geometry in geometries("same_upper" if upper else "same_lower", x, kernel, stride, dilation, y).items():
        assert (*geometry.pads_begin, *geometry.pads_end) == expected, name


def small_convolutions(size):
    """Per axis (y or x, kernel, stride, dilation, begin, end)."""
    spans = {
        "x": (1, size),
        "kernel": (1, 5),
        "stride": (1, 4),
        "dilation": (1, 3),
        "begin": (0, 4),
        "end": (0, 4),
    }
    return st.lists(st.tuples(*(st.integers(*span) for span in spans.values())), min_size=1, max_size=3)


def torch_size(torch, axes):
    """The spatial sizes of torch's convolution, None where torch refuses."""
    x, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    data, weight = torch.empty(1, 1, *x, device="meta"), torch.empty(1, 1, *kernel, device="meta")
    pads = [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    convolve = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][len(x) - 1]
    try:
        return tuple(convolve(torch.nn.functional.pad(data, pads), weight, stride=stride, dilation=dilation).shape[2:])
    except RuntimeError:
        return None


@settings(deadline=None, max_examples=200)
@given(axes=small_convolutions(12), wrong=st.sampled_from([-2, -1, 0, 0, 0, 1, 2]))
def test_convolution_sizes_are_torchs(axes, wrong):
    torch = pytest.importorskip("torch")
    x, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    attributes = {
        "strides": stride,
        "dilations": dilation,
        "pads_begin": begin,
        "pads_end": end,
        "data_format": "NCX",
    }
    filter_shape = (1, 1, *kernel)
    expected = torch_size(torch, axes)
    y = (max(0, (expected or (1,))[0] + wrong), *(expected or x)[1:])

    def accepts(make):
        try:
            return make() is not None
        except ValueError:
            return False

    filters = ConvolutionBackpropFilters(**attributes, filter_format="OIX", filter_shape=filter_shape)
    data = ConvolutionBackpropData(**attributes, filter_format="OIX", output_shape=(1, 1, *x))
    assert accepts(lambda: filters.problem((1, 1, *x), (1, 1, *y))) == (y == expected)
    assert accepts(lambda: data.problem((1, 1, *y), filter_shape)) == (y == expected)
    forward = ConvTransposeBackpropData(**attributes, filter_format="IOX")
    if expected is None:
        assert not accepts(lambda: forward.problem((1, 1, *x), filter_shape))
    else:
        assert forward.problem((1, 1, *x), filter_shape).geometry.y == expected


@settings(deadline=None, max_examples=200)
@given(
    axes=small_convolutions(8),
    extra=st.tuples(*[st.integers(0, 4)] * 3),
    wrong=st.sampled_from([0, 0, 1, 2]),
)
def test_transposed_sizes_are_torchs(axes, extra, wrong):
    torch = pytest.importorskip("torch")
    y, kernel, stride, dilation, pads, _ = zip(*axes, strict=True)
    extra = tuple(e % max(s, d) for e, s, d in zip(extra, stride, dilation, strict=False))  # all that torch takes
    data, weight = torch.empty(1, 1, *y, device="meta"), torch.empty(1, 1, *kernel, device="meta")
    functional = torch.nn.functional
    convolve = [functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d][len(y) - 1]
    try:
        x = tuple(convolve(data, weight, None, stride, pads, extra, 1, dilation).shape[2:])
    except RuntimeError:
        return  # a size below 1
    attributes = {
        "strides": stride,
        "dilations": dilation,
        "pads_begin": pads,
        "pads_end": pads,
        "data_format": "NCX",
    }
    filter_shape = (1, 1, *kernel)

    inferred = ConvolutionBackpropData(**attributes, filter_format="OIX", output_padding=extra)
    assert inferred.problem((1, 1, *y), filter_shape).geometry.x == x
    given_padding = ConvTransposeBackpropData(**attributes, filter_format="OIX", output_padding=extra)
    assert given_padding.problem((1, 1, *x), filter_shape).geometry.y == y
    filters = ConvTransposeBackpropFilters(
        **attributes, filter_format="OIX", output_padding=extra, filter_shape=filter_shape
    )
    other = (x[0] + wrong, *x[1:])
    if wrong:
        with pytest.raises(ValueError, match=f"^output_delta: .* is {other[0]}, expected {x[0]} = "):
            filters.problem((1, 1, *y), (1, 1, *other))
    else:
        assert filters.problem((1, 1, *y), (1, 1, *x)).geometry.x == x


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_upper_places_the_kernel_as_torchs_same(kernel, dilation):
    torch = pytest.importorskip("torch")
    data = torch.arange(1.0, 8).reshape(1, 1, 7)
    weight = torch.tensor([1.0, 10, 100, 1000][:kernel]).reshape(1, 1, kernel)
    expected = torch.nn.functional.conv1d(data, weight, padding="same", dilation=dilation)
    geometry = geometries("same_upper", 7, kernel, 1, dilation, 7)["CF"]
    padded = torch.nn.functional.pad(data, (*geometry.pads_begin, *geometry.pads_end))
    assert torch.equal(torch.nn.functional.conv1d(padded, weight, dilation=dilation), expected)
    # same_lower is same_upper seen from the other end
    lower = geometries("same_lower", 7, kernel, 1, dilation, 7)["CF"]
    assert (lower.pads_begin, lower.pads_end) == (geometry.pads_end, geometry.pads_begin)
