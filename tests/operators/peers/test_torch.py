"""PyTorch's convolution_backward on a grid of attributes: integers in f32, so that both must give the same bits."""

from __future__ import annotations

import itertools

import pytest

from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import covering

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.support.oracles import torch_reference

# one value per axis is cut to the rank: the last axes stay
WINDOWS = [  # kernel, stride, dilation
    ((2, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 3), (1, 1, 1), (1, 1, 1)),
    ((1, 3, 3), (1, 2, 2), (1, 1, 1)),
    ((3, 2, 5), (2, 3, 1), (1, 2, 1)),
    ((2, 3, 4), (1, 2, 3), (2, 2, 3)),
]
PADS = [((0, 0, 0), (0, 0, 0)), ((1, 1, 1), (1, 1, 1)), ((0, 2, 1), (1, 0, 3)), ((2, 3, 4), (2, 3, 4))]
CHANNELS = [(1, 3, 16), (1, 17, 5), (2, 8, 6), (3, 9, 12), (8, 8, 8), (6, 6, 18)]  # groups, c, o
SIZES = {1: (33,), 2: (9, 14), 3: (5, 7, 10)}


def convolution(
    rank: int, window: tuple[tuple[int, ...], ...], pads: tuple[tuple[int, ...], ...], channels: tuple[int, ...]
) -> Convolution:
    k, strides, dilations = (values[-rank:] for values in window)
    begin, end = (values[-rank:] for values in pads)
    axes = zip(SIZES[rank], k, strides, dilations, begin, end, strict=True)
    y = tuple((x + b + e - (k - 1) * d - 1) // s + 1 for x, k, s, d, b, e in axes)
    groups, c, o = channels
    return Convolution(2, groups, c, o, SIZES[rank], y, k, strides, dilations, begin, end)


def grid() -> list[Case]:
    """Rank x window x pads in full; channels, layouts and operators take turns over it."""
    cases: list[Case] = []
    for turn, (rank, window, pads) in enumerate(itertools.product(SIZES, WINDOWS, PADS)):
        for operator in OPERATORS:
            conv = convolution(rank, window, pads, CHANNELS[(turn + len(cases) // 24) % len(CHANNELS)])
            formats = [(d, f) for f in layouts.filter_formats(operator) for d in layouts.DATA_FORMATS]
            cases.append(Case(operator, conv, *formats[turn % len(formats)]))
    return cases


@pytest.mark.parametrize("case", covering(grid()))
def test_same_as_convolution_backward(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    expected = torch_reference.gradient(case.convolution, case.result, tensors)
    assert_same(case.run(tensors), expected)
    if case.operator.startswith("ConvTranspose") and torch_reference.has_transposed(case.convolution):
        assert_same(case.run(tensors), torch_reference.transposed_gradient(case.convolution, case.result, tensors))


def every_layout() -> list[Case]:
    """One grouped convolution in all layouts and types of all operators."""
    conv = convolution(2, WINDOWS[2], PADS[2], CHANNELS[2])
    return [
        Case(operator, conv, data_format, filter_format, dtype)
        for operator in OPERATORS
        for filter_format in layouts.filter_formats(operator)
        for data_format in layouts.DATA_FORMATS
        for dtype in ("f32", "f16", "bf16")
    ]


@pytest.mark.parametrize("case", covering(every_layout()))
def test_all_layouts_and_types(case: Case) -> None:
    # so small that f16 and bf16 hold every sum
    tensors = {name: array.clip(-1, 1) for name, array in operands(case.convolution, case.result).items()}
    expected = torch_reference.gradient(case.convolution, case.result, tensors)
    assert abs(expected).max() <= 256
    assert_same(case.run(tensors).astype("f4"), expected)
