"""The axes of a problem in tiles: along which the algorithm applies, and which positions a tile has."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.te.winograd.cook_toom import POINTS

PRODUCTS = {1: ((4,), (6,)), 2: ((4, 4), (4, 6), (6, 6))}
"""For one and two tiled axes, the numbers of products that a tile may have along each."""

MOST_PRODUCTS = {Gradient.FILTER: 24, Gradient.DATA: 36, Gradient.FORWARD: 36}
"""The most products of a tile: so many that the error stays within 4 times that of direct sums. With 36, filter
gradients of ResNet-50's and VGG-19's layers had 3.4 to 5.5 times the error, and with 24 2.4 to 3.6 times (normally
distributed inputs, norms of the differences from float64)."""

MOST_AXES = 2
"""The algorithm is applied along at most so many axes: with three, a tile of 64 products would be transformed. Whether
that pays was not measured."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis: its `positions`, of which `tile` form a tile, and its taps."""

    tile: int
    """Results of a data gradient's tile, or elements of dy that a filter gradient's tile reads; 1: no tiles."""
    positions: int
    taps: int
    dilation: int
    multiple: int = 1
    """The number of tiles is rounded up to a multiple of this; interleaved tiles count once."""

    @property
    def tiled(self) -> bool:
        """Whether Winograd's algorithm applies along this axis."""
        return self.tile > 1

    @property
    def products(self) -> int:
        """Products of a tile."""
        return self.tile + self.taps - 1

    @property
    def interleaved(self) -> int:
        """The number of tiles that interleave: the dilation."""
        return self.dilation if self.tiled else 1

    @property
    def tiles(self) -> int:
        """The number of tiles, or of positions where the axis is not tiled: a multiple of `interleaved`."""
        if not self.tiled:
            return self.positions
        return tensors.ceil_to(-(-self.positions // (self.tile * self.dilation)), self.multiple) * self.dilation

    @property
    def runs(self) -> int:
        """The number of tiles; interleaved tiles count once."""
        return self.tiles // self.interleaved

    @property
    def covered(self) -> int:
        """The number of positions that the tiles cover."""
        return self.tiles * self.tile

    @property
    def extent(self) -> int:
        """The number of elements that those positions read."""
        return self.covered + (self.taps - 1) * self.dilation

    def begin(self, tile: Index) -> Index:
        """The first position of a tile."""
        return tile // self.dilation * (self.tile * self.dilation) + tile % self.dilation

    def number(self, position: Index) -> Index:
        """The number of the tile that has a position."""
        return position // (self.tile * self.dilation) * self.dilation + position % self.dilation

    def within_tile(self, position: Index) -> Index:
        """The number of a position within its tile, below `tile`."""
        return position // self.dilation % self.tile


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """For each axis, whether Winograd's algorithm may apply: along the last `MOST_AXES` of those with several taps, and
    fewer than the largest tile has products.

    Along none if a stride is greater than one, if there are several groups, if a filter gradient is zero for some taps,
    or if a dilation is larger than the tensor.
    """
    geometry = problem.geometry
    taps_are_zero = problem.gradient is Gradient.FILTER and problem.whole.k != geometry.k
    sizes = geometry.y if problem.gradient is Gradient.DATA else geometry.x
    has_gaps = any(k > 1 and d > size for k, d, size in zip(geometry.k, geometry.dilations, sizes))
    if geometry.groups > 1 or max(geometry.strides) > 1 or taps_are_zero or has_gaps:
        return (False,) * geometry.rank
    able = [1 < k < max(POINTS) for k in geometry.k]
    return tuple(is_able and sum(able[axis:]) <= MOST_AXES for axis, is_able in enumerate(able))


def tile_products(problem: Problem) -> list[tuple[int, ...]]:
    """The numbers of products that a problem's tiles may have along each tiled axis: all choices of `PRODUCTS` by which
    tiles have several positions."""
    taps = [k for k, is_tiled in zip(problem.geometry.k, tiled_axes(problem)) if is_tiled]
    most = MOST_PRODUCTS[problem.gradient]
    choices = [products for products in PRODUCTS.get(len(taps), ()) if prod(products) <= most]
    return [products for products in choices if all(map(operator.lt, taps, products))]


def axes_of(problem: Problem, products: Sequence[int], multiples: Sequence[int]) -> list[Axis]:
    """A problem's spatial axes: of the result, or, for a filter gradient, of dy. Tiles have so many products along
    those that are tiled, and tiles along each are rounded up to `multiples`."""
    geometry, along = problem.geometry, iter(products)
    sizes = geometry.x if problem.gradient is Gradient.DATA else geometry.y
    tiles = [next(along) + 1 - k if tiled else 1 for k, tiled in zip(geometry.k, tiled_axes(problem))]
    return [Axis(*axis) for axis in zip(tiles, sizes, geometry.k, geometry.dilations, multiples)]
