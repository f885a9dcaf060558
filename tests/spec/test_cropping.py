"""The part of a problem that products meet, judged axis by axis by the definition of a convolution."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.spec.problem import Crop
from tvmconvgrad.spec.reducing.cropping import cropped

Products = set[tuple[int, int, int]]
HUGE = (2**20, 2**26, 2**31 - 1, 2**40, 2**62)


def problem(x: int, y: int, k: int, stride: int, dilation: int, pad: int, gradient: Gradient) -> Problem:
    geometry = Geometry(1, 1, 1, 1, (x,), (y,), (k,), (stride,), (dilation,), (pad,), (0,))
    return Problem("ConvolutionBackpropData", gradient, geometry, "NXC", "XCO", "f32", ("a", "b"), "c")


def products(found: Problem) -> Products:
    """(position, tap, element) of all products that meet an element of x, in the whole tensors."""
    g = found.geometry
    (y0,), (k0,), (x0,) = (found.begins(side) for side in "ykx")
    elements = {
        (position, tap): position * g.strides[0] + tap * g.dilations[0] - g.pads_begin[0]
        for position in range(g.y[0])
        for tap in range(g.k[0])
    }
    return {(y0 + i, k0 + j, x0 + at) for (i, j), at in elements.items() if 0 <= at < g.x[0]}


def drawn(random: Random) -> Problem:
    def number() -> int:
        return random.choice((1, 1, 2, 3, random.randint(1, 9), *([random.choice(HUGE) - random.randint(0, 3)] * 2)))

    x, y, k = (random.choice((1, 1, 2, 3, random.randint(1, 9))) for _ in range(3))
    stride, dilation = number(), number()
    position, tap, at = random.randrange(y), random.randrange(k), random.randrange(-2, x + 2)
    pad = max(0, random.choice((0, 1, number(), position * stride + tap * dilation - at)))
    return problem(x, y, k, stride, dilation, pad, random.choice(list(Gradient)))


@pytest.mark.parametrize("seed", range(4))
def test_the_part_has_the_same_products(seed: int) -> None:
    random = Random(seed)
    for _ in range(1000):
        whole = drawn(random)
        part = cropped(whole)
        assert products(part) == products(whole), whole
        assert part.is_zero == (not products(whole))
        assert part.input_shapes == whole.input_shapes
        assert part.output_shape == whole.output_shape
        assert cropped(replace(part, crop=None)).geometry == part.geometry or part.is_zero


@pytest.mark.parametrize("seed", range(4))
def test_the_size_of_numbers_is_bounded_by_the_tensors(seed: int) -> None:
    random = Random(100 + seed)
    for _ in range(1000):
        g = cropped(drawn(random)).geometry
        if g.y[0] > 1 and g.k[0] > 1:
            assert min(g.strides[0], g.dilations[0]) <= 9 * 9 * 9, g


@pytest.mark.parametrize("gradient", Gradient)
def test_what_meets_everything_stays_as_it_is(gradient: Gradient) -> None:
    for numbers in ((9, 9, 3, 1, 1, 1), (8, 4, 3, 2, 1, 1), (56, 28, 1, 2, 1, 0), (9, 5, 2, 1, 4, 0)):
        whole = problem(*numbers, gradient)
        assert cropped(whole) is whole


def test_a_part_in_words() -> None:
    """A filter of 3 taps on one element between pads of 2: position 1 meets it with its last but no other tap."""
    part = cropped(problem(1, 3, 3, 1, 1, 2, Gradient.FILTER))
    assert (part.geometry.y, part.geometry.k) == ((3,), (3,))
    part = cropped(problem(1, 1, 3, 5, 1, 1, Gradient.DATA))
    assert part.geometry == Geometry(1, 1, 1, 1, (1,), (1,), (1,), (1,), (1,), (0,), (0,))
    assert part.crop == Crop((1,), (1,), (3,), (0,), (0,), (1,))


def test_by_way_of_json() -> None:
    part = cropped(problem(1, 1, 3, 5, 1, 1, Gradient.DATA))
    assert Problem.from_dict(part.to_dict()) == part
    nothing = cropped(problem(1, 2, 1, 2, 1, 1, Gradient.DATA))
    assert nothing.is_zero
    assert Problem.from_dict(nothing.to_dict()) == nothing
    with pytest.raises(ValueError, match="has no such part"):
        Problem.from_dict(part.to_dict() | {"crop": {**part.to_dict()["crop"], "k_begins": (3,)}})
    whole = problem(9, 9, 3, 1, 1, 1, Gradient.DATA)
    assert "crop" not in whole.to_dict()
