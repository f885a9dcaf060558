"""The matrices of Winograd's algorithm against their definition, in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from tvmconvgrad.te.winograd.cook_toom import POINTS, cook_toom

SIZES = [(n + 1 - r, r) for n in POINTS for r in range(2, n)]


@pytest.mark.parametrize("divides_results", [False, True], ids=["in G", "in A"])
@pytest.mark.parametrize(("m", "r"), SIZES)
def test_products_add_up_to_the_correlation(m: int, r: int, divides_results: bool) -> None:
    """Result i has tap j times element i + j, and no other product: both sides are bilinear, so units suffice."""
    found = cook_toom(m, r, divides_results)
    n = m + r - 1
    for i, j, e in product(range(m), range(r), range(n)):
        products = [found.taps[f][j] * found.elements[f][e] for f in range(n)]
        assert sum(a * value for a, value in zip(found.results[i], products, strict=True)) == (e == i + j)


@pytest.mark.parametrize(("m", "r"), [(2, 3), (3, 2)])
def test_four_products_have_factors_of_halves(m: int, r: int) -> None:
    found = cook_toom(m, r)
    factors = {abs(value) for matrix in (found.elements, found.taps, found.results) for row in matrix for value in row}
    assert factors == {Fraction(0), Fraction(1, 2), Fraction(1)}


def test_elements_have_exact_factors() -> None:
    """f32 holds the factors of the largest operand's transform, so it rounds sums only."""
    for m, r in SIZES:
        assert all(value.denominator & value.denominator - 1 == 0 for row in cook_toom(m, r).elements for value in row)
