"""The matrices of Winograd's algorithm F(m, r): m results of r taps from n = m + r - 1 products instead of m * r.

    y = A^T [(G g) * (B^T d)]        y: m results, g: r taps, d: the n elements that they read

Cook's and Toom's construction (Blahut, "Fast Algorithms for Signal Processing", 2010, chapter 5; Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", CVPR 2016): polynomials whose product has n coefficients are multiplied
at n - 1 points p and at infinity, where the value is the leading coefficient. Its transpose is the correlation above:
with M_p the product of x - q over the other points q, row p of

    A is 1, p, .. p^(m-1)    G is (1, p, .. p^(r-1)) / M_p(p)    B^T has the coefficients of M_p

and the rows of infinity are 0, .. 0, 1 in A and G, and the coefficients of the product of all x - p in B^T. Here the
sign of M_p(p) is in B^T. Where 0 is no point, the rows of infinity come first, so pairs p and -p always begin at row 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TypeVar

Matrix = tuple[tuple[Fraction, ...], ...]
Row = TypeVar("Row")

POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    5: (Fraction(3, 8), Fraction(-3, 8), Fraction(5, 4), Fraction(-5, 4)),
    6: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
"""The points for each number of products n: 0 if n is even, and pairs p and -p. With the first set, all factors are 0,
1 and 1/2, so sums of small integers stay exact. The others have the smallest errors among pairs of multiples of 1/8,
for two taps and for three: 0.49 times that of the usual 0, 1, -1, 2, and 0.46 times that of 0, 1, -1, 2, -2 (simulated
in f32, F(4x4, 2x2) with 256 channels and F(4x4, 3x3) with 64, normally distributed)."""


@dataclass(frozen=True)
class Transforms:
    """The three matrices of F(m, r)."""

    elements: Matrix
    """B^T, n x n."""
    taps: Matrix
    """G, n x r."""
    results: Matrix
    """A^T, m x n."""


@lru_cache(maxsize=64)  # axes of a problem ask for the same ones
def cook_toom(m: int, r: int, divides_results: bool = False) -> Transforms:
    """The matrices of F(m, r), with the points of `POINTS`. The divisors M_p(p) are in G, or with
    `divides_results` in A^T: in that of the two which is applied to less data."""
    points = POINTS[m + r - 1]
    divisors = _rows(points, [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points], Fraction(1))
    sizes = [abs(divisor) for divisor in divisors]
    by_results, by_taps = (
        sizes if divides_results == wanted else [Fraction(1)] * len(sizes) for wanted in (True, False)
    )
    elements = _rows(points, [_coefficients([q for q in points if q != p]) for p in points], _coefficients(points))
    signed = _divided(elements, [divisor / size for divisor, size in zip(divisors, sizes)])
    return Transforms(
        tuple((*row, *[Fraction(0)] * (m + r - 1 - len(row))) for row in signed),
        tuple(_divided(_powers(points, r), by_taps)),
        tuple(zip(*_divided(_powers(points, m), by_results))),
    )


def _powers(points: Sequence[Fraction], count: int) -> list[tuple[Fraction, ...]]:
    """A row 1, p, .. p^(count - 1) for each point, and the one of infinity."""
    infinity = (*[Fraction(0)] * (count - 1), Fraction(1))
    return _rows(points, [tuple(p**power for power in range(count)) for p in points], infinity)


def _rows(points: Sequence[Fraction], found: Sequence[Row], infinity: Row) -> list[Row]:
    """The rows of the points and of infinity, in their order."""
    return [*found, infinity] if 0 in points else [infinity, *found]


def _divided(rows: Sequence[Sequence[Fraction]], divisors: Sequence[Fraction]) -> list[tuple[Fraction, ...]]:
    return [tuple(value / divisor for value in row) for row, divisor in zip(rows, divisors, strict=True)]


def _coefficients(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the product of x - root over all roots, that of 1 first."""
    found = [Fraction(1)]
    for root in roots:
        found = [low - root * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)])]
    return tuple(found)
