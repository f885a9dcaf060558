"""What no product meets is zero, whatever else the tensors hold, and however large an attribute is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Shape, operands
from tests.support.cases.random_cases import random_case
from tests.support.oracles import reference

NCX = {"data_format": "NCX", "filter_format": "OIX"}


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def test_every_position_meets_pads_alone() -> None:
    op = cg.ConvolutionBackpropFilters(
        strides=(2,), dilations=(1,), pads_begin=(1,), pads_end=(1,), filter_shape=(1, 2, 2)
    )
    assert_same(op(ones(1, 1, 2), ones(1, 2, 2)), np.zeros((1, 2, 2), np.float32))


def test_a_filter_that_is_longer_than_the_image() -> None:
    op = cg.ConvolutionBackpropData(
        strides=(3, 1, 1),
        dilations=(1, 1, 1),
        pads_begin=(4, 0, 0),
        pads_end=(1, 0, 0),
        output_shape=(1, 1, 6, 1, 1),
        **NCX,
    )
    assert_same(op(ones(1, 16, 1, 1, 1), ones(16, 1, 11, 1, 1)), np.full((1, 1, 6, 1, 1), 16, np.float32))
    op = cg.ConvolutionBackpropData(
        strides=(5, 1), dilations=(6, 1), pads_begin=(0, 0), pads_end=(59, 0), output_shape=(1, 1, 2, 1), **NCX
    )
    assert_same(op(ones(1, 16, 1, 1), ones(16, 1, 11, 1)), np.float32([[[[16], [0]]]]))


def test_a_row_behind_all_that_an_infinity_meets() -> None:
    output_delta = ones(1, 2, 1, 5)
    output_delta[0, 1, 0, 1] = np.inf
    op = cg.ConvolutionBackpropData(
        strides=(2, 2), dilations=(1, 1), pads_begin=(0, 1), pads_end=(0, 1), output_shape=(1, 1, 8, 9), **NCX
    )
    result = op(output_delta, ones(2, 1, 7, 3))[0, 0]
    row = np.float32([2, np.inf, np.inf, np.inf, 2, 4, 2, 4, 2])  # position 1 meets elements 1 to 3 of a row
    assert_same(result, np.stack([*[row] * 7, np.zeros(9, np.float32)]))


@pytest.mark.parametrize("big", [2**20, 2**31, 2**61])
def test_the_size_of_an_attribute_costs_nothing(big: int) -> None:
    apart = {"strides": (big,), "dilations": (1,), "pads_begin": (1,), "pads_end": (1,)}
    crossed = {"strides": (big,), "dilations": (big,), "pads_begin": (big,), "pads_end": (big - 4,)}
    begin = time.monotonic()
    for attributes, positions in ((apart, 1), (crossed, 2)):
        data = cg.ConvolutionBackpropData(output_shape=(2, 5, 3), **attributes)
        filters = cg.ConvolutionBackpropFilters(filter_shape=(2, 3, 5), **attributes)
        shapes = (2, positions, 5), (2, 3, 5), (2, 5, 3)
        for kernel in (data.compile(*shapes[:2]), filters.compile(shapes[2], shapes[0])):
            assert kernel.workspace_bytes < 2**16
        delta = ones(*shapes[0])
        gradient = np.zeros((2, 5, 3), np.float32)
        gradient[:, 0] = 5 * positions  # which all meet the first element, once, and nothing else
        assert_same(data(delta, ones(*shapes[1])), gradient)
    assert time.monotonic() - begin < 60  # seconds, where 2**31 took for ever


STEPPING = [
    # strides, or dilations, that step over the data between two that meet it
    Convolution(2, 1, 3, 4, (1, 2), (4, 4), (5, 7), (3, 4), (1, 1), (7, 6), (8, 11)),
    Convolution(2, 8, 8, 8, (2, 1), (5, 9), (3, 2), (1, 1), (3, 5), (5, 5), (4, 8)),
    # a stride, and a dilation, that is one longer than the data: one tap, and one position, that nothing meets
    Convolution(2, 1, 3, 4, (3,), (2,), (4,), (4,), (1,), (3,), (2,)),
    Convolution(2, 1, 3, 4, (7,), (3,), (2,), (1,), (4,), (0,), (0,)),
]
APART = [
    # dilations that leave holes, strides that do, both, and neither; edges that nothing meets
    Convolution(2, 1, 3, 4, (9, 14), (2, 3), (2, 2), (1, 2), (3, 5), (0, 1), (0, 0)),
    Convolution(2, 1, 8, 4, (13, 11), (3, 2), (4, 7), (3, 2), (2, 1), (1, 2), (0, 0)),
    Convolution(2, 4, 8, 4, (17, 6), (2, 5), (5, 3), (4, 1), (3, 1), (2, 1), (0, 0)),
    Convolution(2, 16, 16, 16, (6, 19), (2, 4), (2, 3), (4, 3), (1, 2), (1, 0), (0, 0)),
]


def cases(count: int, operators: Sequence[str] = OPERATORS) -> list[object]:
    """Gradients of those, and of random ones, in each layout and type in turn."""
    random = Random(0)
    drawn = [random_case(random, OPERATORS[i % len(OPERATORS)]).convolution for i in range(count)]
    formats = list(product((("NXC", "XIO"), ("NCX", "OIX")), DTYPES))
    found = [
        Case(operator, conv, *formats[i % 6][0], formats[i % 6][1], output_padding=_padding(conv, operator))
        for i, (conv, operator) in enumerate(product([*STEPPING, *APART, *drawn], operators))
        if conv not in APART or _padding(conv, operator)
    ]
    return [pytest.param(case, id=str(case)) for case in found]


def _padding(conv: Convolution, operator: str) -> Shape | None:
    return None if operator == "ConvolutionBackpropFilters" else conv.beyond


ROWS = [
    # both ends meet something, and what lies between the taps does not
    ("ConvolutionBackpropData", Convolution(1, 1, 2, 3, (10,), (4,), (3,), (1,), (6,), (3,), (3,))),
    ("ConvolutionBackpropData", Convolution(2, 2, 4, 2, (2, 34), (2, 5), (1, 5), (1, 1), (1, 7), (0, 0), (0, 0))),
    ("ConvTransposeBackpropData", Convolution(2, 1, 3, 9, (4,), (4,), (4,), (1,), (6,), (9,), (9,))),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operator", "conv"), ROWS)
def test_gaps_within_a_row_of_positions(operator: str, conv: Convolution, dtype: str) -> None:
    expect_zeros(Case(operator, conv, "NCX", "OIX", dtype, output_padding=conv.beyond), "data-positions")


@pytest.mark.parametrize("case", cases(6))
def test_what_no_product_meets_is_zero(case: Case) -> None:
    expect_zeros(case)


def expect_zeros(case: Case, rule: str | None = None) -> None:
    """Zeros where no product meets the result, though all that there is, is infinite or NaN; and nowhere else."""
    conv = case.convolution
    ones = {name: np.ones(conv.shapes[name], np.float32) for name in conv.shapes if name != case.result}
    unmet = reference.gradient(conv, case.result, ones) == 0
    kernel = replace(case.call, schedule=rule).compile()
    for value in (1.0, np.inf, np.nan):
        inputs = case.arrays({name: array * np.float32(value) for name, array in ones.items()})
        result = layouts.to_canonical(kernel(*inputs), case.axes(case.result))
        assert_same(result == 0, unmet)


@pytest.mark.parametrize("case", cases(12, ("ConvolutionBackpropData", "ConvTransposeBackpropData")))
def test_an_infinity_stays_near_what_it_meets(case: Case) -> None:
    conv, name = case.convolution, "y" if case.result == "x" else "x"
    tensors = operands(conv, case.result, seed=1)
    rng = np.random.default_rng(2)
    for _ in range(4):
        at = tuple(rng.integers(size) for size in tensors[name].shape)
        one = {"w": np.ones(conv.shapes["w"], np.float32), name: np.zeros_like(tensors[name])}
        one[name][at] = 1
        met = np.argwhere(reference.gradient(conv, case.result, one)[at[0]])[:, 1:]
        infinite, zero = ({key: array.copy() for key, array in tensors.items()} for _ in range(2))
        infinite[name][at], zero[name][at] = np.inf, 0
        with np.errstate(invalid="ignore"):
            result, expected = case.run(infinite), case.run(zero)
        near = np.zeros(result.shape, bool)
        if len(met):
            ends = zip(met.min(0), met.max(0), conv.extents)
            near[(at[0], slice(None), *(slice(max(0, low - reach), high + reach + 1) for low, high, reach in ends))] = 1
        assert_same(result[~near], expected[~near])
