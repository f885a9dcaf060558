"""Orders of axes with the same memory: literal cases, and that the sums stay the same on the same memory."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import tvmconvgrad as cg
from tvmconvgrad.reference import reference
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.epilogue import Epilogue
from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.spec.reducing.orders import in_best_order

FORMATS = ("XIO", "OIX", "OXI", "XOI", "IOX")


def weights_gradient(
    x: int, taps: int, channels: tuple[int, int], formats: tuple[str, str], groups: int = 1
) -> Problem:
    """Of two images with x elements, c and o channels, in one dimension, with stride 1 and no padding."""
    (c, o), (data_format, filter_format) = channels, formats
    sizes = {"X": taps, "I": c // groups, "O": o}
    op = cg.ConvolutionBackpropFilters(
        strides=[1],
        dilations=[1],
        pads_begin=[0],
        pads_end=[0],
        groups=groups,
        data_format=data_format,
        filter_format=filter_format,
        filter_shape=[sizes[axis] for axis in filter_format],
    )
    y = x - taps + 1
    nxc = data_format == "NXC"
    return op.problem((2, x, c) if nxc else (2, c, x), (2, y, o) if nxc else (2, o, y))


@pytest.mark.parametrize(
    ("x", "taps", "channels", "formats", "groups", "expected"),
    [
        (5, 1, (3, 4), ("NCX", "OIX"), 1, ("NCX", "OXC")),  # one tap
        (5, 1, (3, 4), ("NXC", "IOX"), 1, ("NXC", "XCO")),
        (5, 2, (3, 4), ("NCX", "OIX"), 1, ("NCX", "OCX")),  # nothing has one element
        (5, 2, (3, 4), ("NXC", "XOI"), 1, ("NXC", "XOC")),
        (5, 2, (3, 1), ("NXC", "XIO"), 1, ("NXC", "OXC")),  # one output channel
        (5, 2, (3, 1), ("NCX", "IOX"), 1, ("NCX", "OCX")),
        (5, 2, (1, 3), ("NXC", "XOI"), 1, ("NXC", "XCO")),  # one input channel
        (5, 2, (4, 4), ("NCX", "OXI"), 4, ("NCX", "OCX")),  # one input channel a group
        (1, 1, (3, 4), ("NCX", "OIX"), 1, ("NXC", "OXC")),  # one position
        (5, 2, (1, 1), ("NXC", "XIO"), 1, ("NCX", "OCX")),  # one channel: positions are the only axis
        (2, 2, (1, 3), ("NCX", "XIO"), 1, ("NXC", "XCO")),  # one channel of x, one position of y
        (5, 2, (1, 3), ("NCX", "XIO"), 1, ("NCX", "XCO")),  # y has both
    ],
)
def test_the_first_order_is_taken(
    x: int, taps: int, channels: tuple[int, int], formats: tuple[str, str], groups: int, expected: tuple[str, str]
) -> None:
    found = in_best_order(weights_gradient(x, taps, channels, formats, groups))
    assert (found.data_format, found.filter_axes) == expected


def drawn(random: Random) -> Problem:
    """Any sum, in one to three dimensions, with many extents of one and filters as large as the images."""
    rank, groups = random.choice((1, 1, 2, 3)), random.choice((1, 1, 1, 2))
    k = tuple(random.choice((1, 1, 2, 3)) for _ in range(rank))
    most = random.choice((1, 3))
    y, strides = (tuple(random.randint(1, high) for _ in range(rank)) for high in (most, 2))
    x = tuple((count - 1) * stride + taps for count, stride, taps in zip(y, strides, k))
    none, ones = (0,) * rank, (1,) * rank
    c, o = groups * random.choice((1, 2, 3)), groups * random.choice((1, 2))
    geometry = Geometry(random.choice((1, 2)), groups, c, o, x, y, k, strides, ones, none, none)
    gradient, operator = random.choice(
        (
            (Gradient.FILTER, "ConvolutionBackpropFilters"),
            (Gradient.DATA, "ConvolutionBackpropData"),
            (Gradient.FORWARD, "ConvTransposeBackpropData"),
        )
    )
    bias = gradient is not Gradient.FILTER and random.random() < 0.3
    return Problem(
        operator,
        gradient,
        geometry,
        random.choice(("NXC", "NCX")),
        random.choice(("XCO", "OCX", "OXC", "XOC", "COX")),
        "f32",
        ("first", "second"),
        "result",
        epilogue=Epilogue(bias=bias),
        flips_filter=random.random() < 0.3,
    )


@pytest.mark.parametrize("seed", range(600))
def test_sums_are_the_same_on_the_same_memory(seed: int) -> None:
    random, generator = Random(seed), np.random.default_rng(seed)
    before = drawn(random)
    after = reduced(before)
    assert after.crop is not None or in_best_order(after) == after
    assert after.bias_shape == before.bias_shape or not before.epilogue.bias
    inputs = [generator.integers(-4, 5, shape).astype(np.float32) for shape in before.input_shapes]
    same = [one.reshape(shape) for one, shape in zip(inputs, after.input_shapes)]
    assert reference(after, *same).ravel().tolist() == reference(before, *inputs).ravel().tolist()
