"""The axes of a problem in tiles: which positions a tile has, and which elements they read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.data_gradient import PhaseConvolution
from tvmconvgrad.te.phases import axis_phase_groups
from tvmconvgrad.te.tensors import Index


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
def untiled_axes(problem: Problem) -> tuple[TiledAxis, ...]:
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
