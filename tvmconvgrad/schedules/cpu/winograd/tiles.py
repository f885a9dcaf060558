"""Which tiles the rules choose from: the axes that have tiles, and the numbers of products of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.winograd.axes import TiledAxis, untiled_axes

PRODUCTS = {1: ((4,), (5,), (6,)), 2: ((4, 4), (4, 6), (5, 5), (5, 6), (6, 5), (6, 6))}
"""For one and two tiled axes, the numbers of products that a tile may have along each. A choice is drawn by the number
of all its products, so no two have the same."""

TAPS = {4: range(2, 4), 5: range(2, 3), 6: range(3, 6)}
"""For each number of products along an axis, how many taps may have it. For two taps, tiles of 6 x 6 products would
have 1.8 times the error of 5 x 5, and data gradients of DCGAN's layers took longer with them."""

MOST_PRODUCTS = {Gradient.FILTER: 24, Gradient.DATA: 36, Gradient.FORWARD: 36}
"""The most products of a tile: so many that the error stays within 4 times that of direct sums. With 36, weights
gradients of ResNet-50's and VGG-19's layers had 3.4 to 5.5 times the error, and with 24 2.4 to 3.6 times (normally
distributed inputs, norms of the differences from float64)."""

MOST_AXES = 2
"""The algorithm is applied along at most so many axes: with three, a tile of 64 products would be transformed. Whether
that pays was not measured."""


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """For each axis, whether Winograd's algorithm may apply: along the last `MOST_AXES` of those whose number of taps
    `TAPS` has.

    Along none if a stride is greater than one, except in a data gradient whose output phases have the same number of
    taps. Along none if there are several groups, if a weights gradient is zero for some taps, or if a dilation is
    larger than the tensor.
    """
    geometry, axes = problem.geometry, untiled_axes(problem)
    taps_are_zero = problem.gradient is Gradient.FILTER and problem.whole.k != geometry.k
    sizes = geometry.y if problem.gradient is Gradient.DATA else geometry.x
    has_gaps = any(axis.taps > 1 and axis.dilation > size for axis, size in zip(axes, sizes))
    if not axes or geometry.groups > 1 or taps_are_zero or has_gaps:
        return (False,) * geometry.rank
    able = [any(axis.taps in taps for taps in TAPS.values()) for axis in axes]
    return tuple(is_able and sum(able[place:]) <= MOST_AXES for place, is_able in enumerate(able))


def tile_products(problem: Problem) -> list[tuple[int, ...]]:
    """The numbers of products that a problem's tiles may have along each tiled axis: all choices of `PRODUCTS` that
    `TAPS` allows."""
    taps = [axis.taps for axis, is_tiled in zip(untiled_axes(problem), tiled_axes(problem)) if is_tiled]
    most = MOST_PRODUCTS[problem.gradient]
    choices = [products for products in PRODUCTS.get(len(taps), ()) if prod(products) <= most]
    return [products for products in choices if all(k in TAPS[n] for k, n in zip(taps, products))]


def axes_of(problem: Problem, products: Sequence[int], multiples: Sequence[int]) -> list[TiledAxis]:
    """A problem's spatial axes: of the result, or, for a weights gradient, of dy. Tiles have so many products along
    those that are tiled, and tiles along each are rounded up to `multiples`."""
    along = iter(products)
    return [
        replace(axis, tile=next(along) + 1 - axis.taps if is_tiled else 1, multiple=multiple)
        for axis, is_tiled, multiple in zip(untiled_axes(problem), tiled_axes(problem), multiples)
    ]
