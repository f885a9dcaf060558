"""The axes of a problem in tiles: along which the algorithm applies, and which positions a tile has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.data_gradient import PhaseConvolution
from tvmconvgrad.te.phases import axis_phase_groups
from tvmconvgrad.te.tensors import Index

PRODUCTS = {1: ((4,), (5,), (6,)), 2: ((4, 4), (4, 6), (5, 5), (5, 6), (6, 5), (6, 6))}
"""For one and two tiled axes, the numbers of products that a tile may have along each."""

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


@dataclass(frozen=True)
class TiledAxis:
    """One spatial axis: its `positions`, of which `tile` form a tile, and its taps. In a data gradient they are those
    of one output phase."""

    tile: int
    """Results of a data gradient's tile, or elements of dy that a weights gradient's tile reads; 1: no tiles."""
    positions: int
    taps: int
    dilation: int
    multiple: int = 1
    """The number of tiles is rounded up to a multiple of this; interleaved tiles count once."""
    phases: int = 1
    """The number of output phases of a data gradient."""
    shifts: int = 1
    """Number of distinct tile origins over all output phases, including unused ones."""

    @property
    def tiled(self) -> bool:
        """Whether Winograd's algorithm applies along this axis."""
        return self.tile > 1

    @property
    def is_shifted(self) -> bool:
        """Whether tiles begin from several neighbours."""
        return self.tiled and self.shifts > 1

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
    def halo(self) -> int:
        """The number of elements that positions read beyond their own number, in all phases."""
        return (self.taps - 1) * self.dilation + self.shifts - 1

    @property
    def extent(self) -> int:
        """The number of elements that those positions read, in all phases."""
        return self.covered + self.halo

    def begin(self, tile: Index) -> Index:
        """The first position of a tile."""
        return tile // self.dilation * (self.tile * self.dilation) + tile % self.dilation

    def number(self, position: Index) -> Index:
        """The number of the tile that has a position."""
        return position // (self.tile * self.dilation) * self.dilation + position % self.dilation

    def within_tile(self, position: Index) -> Index:
        """The number of a position within its tile, below `tile`."""
        return position // self.dilation % self.tile


@lru_cache(maxsize=64)  # a planner asks for each tile that it may take
def phases_of(problem: Problem) -> PhaseConvolution | None:
    """The sum of a data gradient whose output phases all have the same number of taps, with the channels (r, c) of all
    phases r; None if they differ, or if no element has a product."""
    g = problem.geometry
    numbers = zip(g.y, g.x, g.k, g.strides, g.dilations, g.pads_begin)
    per_axis = [axis_phase_groups(*axis) for axis in numbers]
    if any(len(found) != 1 for found in per_axis):
        return None
    part = PhaseConvolution(problem, tuple(group for (group,) in per_axis), (False,) * g.rank, own_first_positions=True)
    return replace(part, positions=part.needed)


@lru_cache(maxsize=64)
def _untiled(problem: Problem) -> tuple[TiledAxis, ...]:
    """A problem's spatial axes without tiles. Empty for a strided weights gradient or forward convolution, and for a
    data gradient whose output phases have different numbers of taps."""
    geometry = problem.geometry
    if problem.gradient is not Gradient.DATA:
        axes = zip(geometry.y, geometry.k, geometry.dilations)
        return tuple(TiledAxis(1, *axis) for axis in axes) if max(geometry.strides) == 1 else ()
    part = phases_of(problem)
    if part is None:
        return ()
    return tuple(
        TiledAxis(1, size, group.taps, group.dilation, 1, group.phases, max(group.firsts) - min(group.firsts) + 1)
        for size, group in zip(part.positions, part.phase_groups)
    )


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """For each axis, whether Winograd's algorithm may apply: along the last `MOST_AXES` of those whose number of taps
    `TAPS` has.

    Along none if a stride is greater than one, except in a data gradient whose output phases have the same number of
    taps. Along none if there are several groups, if a weights gradient is zero for some taps, or if a dilation is
    larger than the tensor.
    """
    geometry, axes = problem.geometry, _untiled(problem)
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
    taps = [axis.taps for axis, is_tiled in zip(_untiled(problem), tiled_axes(problem)) if is_tiled]
    most = MOST_PRODUCTS[problem.gradient]
    choices = [products for products in PRODUCTS.get(len(taps), ()) if prod(products) <= most]
    return [products for products in choices if all(k in TAPS[n] for k, n in zip(taps, products))]


def axes_of(problem: Problem, products: Sequence[int], multiples: Sequence[int]) -> list[TiledAxis]:
    """A problem's spatial axes: of the result, or, for a weights gradient, of dy. Tiles have so many products along
    those that are tiled, and tiles along each are rounded up to `multiples`."""
    along = iter(products)
    return [
        replace(axis, tile=next(along) + 1 - axis.taps if is_tiled else 1, multiple=multiple)
        for axis, is_tiled, multiple in zip(_untiled(problem), tiled_axes(problem), multiples)
    ]
