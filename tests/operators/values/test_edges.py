"""Sizes at the edge of what is legal: nothing at all, pads and strides beyond the kernel, primes, tails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, ROLES, Case, assert_same
from tests.support.cases.convolution import Convolution, Shape, operands
from tests.support.cases.sampling import covering
from tests.support.oracles import reference


def convolution(
    x: Shape,
    k: Shape,
    *,
    batch: int = 2,
    groups: int = 1,
    c: int = 3,
    o: int = 5,
    s: Shape | None = None,
    d: Shape | None = None,
    pads: tuple[Shape, Shape] | None = None,
) -> Convolution:
    """A convolution; strides and dilations 1 and no pads where they are left out."""
    ones, zeros = (1,) * len(x), (0,) * len(x)
    s, d, (begin, end) = s or ones, d or ones, pads or (zeros, zeros)
    axes = zip(x, k, s, d, begin, end, strict=True)
    y = tuple((size + b + e - (k - 1) * d - 1) // s + 1 for size, k, s, d, b, e in axes)
    return Convolution(batch, groups, c, o, x, y, k, s, d, begin, end)


EMPTY = {
    "no batch": convolution((5, 6), (3, 2), batch=0),
    "no channels of x": convolution((5, 6), (3, 2), c=0),
    "no channels of y": convolution((5, 6), (3, 2), o=0),
    "no channels in groups": convolution((5, 6), (3, 2), groups=2, c=4, o=0),
    "nothing but pads": convolution((0, 4), (3, 2), pads=((2, 0), (2, 0))),
    "nothing at all": convolution((0,), (1,), batch=0, c=0, o=0, pads=((1,), (0,))),
}
SIZES = {
    "pads of the kernel's size": convolution((6, 7), (3, 2), pads=((3, 2), (3, 2))),
    "pads beyond the kernel": convolution((4, 5), (2, 3), pads=((5, 9), (7, 4))),
    "pads beyond the kernel, strided": convolution((4, 5), (2, 3), s=(3, 2), pads=((5, 9), (7, 4))),
    "a row of pads only": convolution((1,), (1,), s=(2,), pads=((4,), (5,))),
    "a kernel beyond the input": convolution((2, 3), (5, 6), pads=((2, 2), (3, 1))),
    "a kernel beyond the input, by dilation": convolution((4, 3), (3, 2), d=(4, 5), pads=((3, 3), (2, 1))),
    "strides beyond the kernel": convolution((17, 14), (2, 1), s=(5, 3)),
    "strides beyond the input": convolution((3, 2), (2, 2), s=(7, 9)),
    "strides and dilations alike": convolution((19, 17), (3, 2), s=(3, 2), d=(3, 2), pads=((2, 1), (1, 1))),
    "strides over a multiple of dilations": convolution((23, 21), (3, 4), s=(4, 6), d=(2, 3), pads=((1, 2), (0, 3))),
    "dilations over a multiple of strides": convolution((23, 21), (3, 3), s=(2, 3), d=(4, 6), pads=((1, 2), (0, 3))),
    "a rest that no tap reaches": convolution((10, 11), (2, 3), s=(4, 5)),
    "one element": convolution((1, 1, 1), (1, 1, 1), batch=1, c=1, o=1),
    "a large kernel": convolution((31,), (29,), pads=((14,), (14,))),
    "a global kernel": convolution((7, 9), (7, 9)),
    "prime sizes": convolution((13, 19), (5, 7), s=(2, 3), pads=((2, 3), (2, 3)), batch=3, c=7, o=11),
    "prime sizes in 3-D": convolution((5, 7, 11), (2, 3, 5), s=(1, 2, 3), pads=((1, 1, 2), (0, 1, 2)), c=7, o=13),
    "a long row": convolution((1009,), (3,), s=(1,), d=(101,), pads=((1,), (0,))),
    "many small images": convolution((2, 2), (2, 2), batch=129, pads=((1, 1), (0, 0))),
    "a batch of one and one column": convolution((31, 1), (5, 1), batch=1, s=(2, 1), pads=((2, 0), (2, 0))),
}
TAILS = (1, 3, 5, 17, 33)


def judge(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    assert_same(case.run(tensors), reference.gradient(case.convolution, case.result, tensors))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors(name: str, operator: str) -> None:
    case = Case(operator, EMPTY[name])
    tensors = operands(case.convolution, case.result)
    got = case.run(tensors)
    assert got.shape == case.convolution.shapes[case.result]
    assert not got.any()  # zero, as every empty sum


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_empty_sum_clears_out(operator: str) -> None:
    # the axis that is summed has no elements, the result has
    summed = {"w": "no batch", "x": "no channels of y", "y": "no channels of x"}
    case = Case(operator, EMPTY[summed[ROLES[operator][1]]])
    out = np.full(case.shape(case.result), 7, np.float32)
    assert out.size
    kernel = case.call.compile()
    assert kernel(*case.arrays(operands(case.convolution, case.result)), out=out) is out
    assert not out.any()


def sizes() -> list[Case]:
    return [Case(operator, conv) for conv in SIZES.values() for operator in OPERATORS]


@pytest.mark.parametrize("case", covering(sizes(), each=lambda case: [case.convolution]))
def test_sizes(case: Case) -> None:
    judge(case)


def tails() -> list[Case]:
    """All pairs of channel tails, dense and in groups; operators and layouts in turn."""
    found: list[Case] = []
    for (c, o), groups in itertools.product(itertools.product(TAILS, TAILS), (1, 2)):
        operator = OPERATORS[len(found) % 4]
        formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(operator)]
        sizes = {"groups": groups, "c": groups * c, "o": groups * o}
        conv = convolution((7, 9), (3, 2), s=(1, 2), pads=((1, 0), (1, 1)), **sizes)  # type: ignore[arg-type]
        found.append(Case(operator, conv, *formats[len(found) // 4 % len(formats)]))
    return found


@pytest.mark.parametrize("case", covering(tails()))
def test_channel_tails(case: Case) -> None:
    judge(case)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("channels", "multiplier"), [(1, 1), (3, 1), (17, 2), (33, 1)])
def test_depthwise_tails(channels: int, multiplier: int, operator: str) -> None:
    sizes = {"groups": channels, "c": channels, "o": channels * multiplier}
    judge(Case(operator, convolution((9, 11), (3, 3), s=(1, 2), pads=((1, 1), (1, 1)), **sizes)))  # type: ignore[arg-type]


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_taps_so_far_apart_that_they_are_gathered(operator: str, data_format: str) -> None:
    """Two taps, 30 elements apart, of which two positions read four elements in all; and two axes of such."""
    judge(Case(operator, convolution((32,), (2,), d=(30,)), data_format))
    judge(Case(operator, convolution((33, 5), (2, 3), s=(2, 1), d=(30, 1)), data_format))
