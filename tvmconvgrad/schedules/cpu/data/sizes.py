"""The register tile of data gradients and forward convolutions, and the extents of their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from math import gcd, prod

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.schedules.cpu.data.sum_axis import LEAST_LEFT_OUT, MOST_COPIES, SumAxis
from tvmconvgrad.schedules.expressions import Blocking
from tvmconvgrad.schedules.expressions.plain import data_views
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.data_gradient import PhaseConvolution, phase_convolutions
from tvmconvgrad.te.phases import reaches_all
from tvmconvgrad.te.tensors import ceil_to, group_sizes
from tvmconvgrad.tir.passes.limits import MAX_STRIDE

WORK_ITEMS = 28
"""The least number of parallel work items that a sum should have: enough for many cores, and few enough to stay large.
28 divides the rows of many layers. With half of it 47 sums change, and take 0.98 times as long; with twice, 54 and 0.97
(benchmarks/constants.py)."""


class DataAxis(str, Enum):
    """The vectorised axis of a data gradient or a forward, with the name that its rule has."""

    N = "channels"
    M = "positions"
    K = "k"
    GROUPS = "groups"


@dataclass(frozen=True, order=True)
class DataTile:
    """The register tile: `positions` along the last axis in each of `rows`, `n` channels of the result, and `groups`,
    with vectors over `vector_axis`."""

    positions: int
    n: int
    groups: int
    vector_axis: DataAxis
    rows: int = 1
    """Positions along the last axis but one; more than one only with vectors over positions, or in tile registers."""
    tile_rows: int | None = None
    """The rows of each tile register, if the sums are in those (tile_registers.py): a divisor of `positions`, or, with
    vectors over positions, of `n`."""

    @property
    def has_channel_rows(self) -> bool:
        """Whether the rows of tile registers are channels of N, and their columns positions."""
        return self.vector_axis is DataAxis.M and self.tile_rows is not None

    def extents(self, rank: int) -> tuple[int, ...]:
        """How many positions the tile has along each of `rank` spatial axes."""
        return ((1,) * (rank - 2) + (self.rows, self.positions))[-rank:]

    def blocks(self, positions: Sequence[int]) -> list[int]:
        """How many tiles there are along each axis of so many positions."""
        return [count // extent for count, extent in zip(positions, self.extents(len(positions)))]

    def covered(self, blocks: Sequence[int]) -> list[int]:
        """How many positions there are along each axis of so many tiles."""
        return [count * extent for count, extent in zip(blocks, self.extents(len(blocks)))]

    def vectors(self, lanes: int) -> tuple[int, int, int]:
        """(rows, columns, lanes used) of the tile, in vector registers of so many lanes. A step loads an operand for
        each row and a vector for each column (two vectors with vectors over K), for rows x columns FMAs."""
        if self.vector_axis is DataAxis.K:
            return self.positions, self.n, lanes
        rows, elements = (
            (self.n, self.positions) if self.vector_axis is DataAxis.M else (self.positions, self.n * self.groups)
        )
        used = gcd(self.groups if self.vector_axis is DataAxis.GROUPS else elements, lanes)
        return rows, self.rows * elements // used, used


@dataclass(frozen=True)
class Size:
    """The extents of one group's sum, before they are rounded up to a tile."""

    axes: tuple[SumAxis, ...]
    n: int
    """N: channels of the result, those of all its output phases together."""
    products: int
    """K: the products that an element of the result adds up, which are taps times channels (`DataSizes.k`)."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of positions along each axis."""
        return tuple(axis.positions for axis in self.axes)

    def computed(self, tile: DataTile, count: Callable[[SumAxis, int], int] = SumAxis.computed) -> int:
        """Pairs of position and tap that are computed with such tiles. `count` says how many there are along a row, in
        tiles of so many positions."""
        *others, (last, extent) = zip(self.axes, tile.extents(len(self.axes)))
        return prod(axis.computed(size) for axis, size in others) * count(last, extent)


@dataclass(frozen=True)
class DataSizes:
    """The extents of a problem's sums, one for each combination of phases (te/data_gradient.py)."""

    problem: Problem

    @cached_property
    def sums(self) -> list[Size]:
        """The sums; a forward convolution has one. Each output phase has its own positions."""
        return self._sums(n=1)

    @cached_property
    def sums_of_phases_together(self) -> list[Size]:
        """The sums for tiles that have channels of several output phases, with the positions that any of these needs
        (`PhaseConvolution.own_first_positions` in te/data_gradient.py)."""
        return self._sums(n=2 * self.n)

    def _sums(self, n: int) -> list[Size]:
        """The sums for tiles with so many channels of N."""
        geometry = self.problem.geometry
        if self.problem.gradient is Gradient.FORWARD:
            numbers = zip(geometry.y, geometry.k, geometry.pads_begin, geometry.strides, geometry.dilations, geometry.x)
            axes = tuple(SumAxis(y, k, -pad, stride, dilation, x) for y, k, pad, stride, dilation, x in numbers)
            return [Size(axes, self.n, self.k * prod(geometry.k))]
        return [Size(_axes(part), part.channels, self.k * part.taps) for part in phase_convolutions(self.problem, n)]

    @cached_property
    def n(self) -> int:
        """Channels of the result, of one group. N of a sum may be more: it has those of several phases (`Size.n`)."""
        c, o = group_sizes(self.problem.geometry)
        return c if self.problem.gradient is Gradient.DATA else o

    @property
    def n_axis(self) -> str:
        """Which of the filter's axes has the channels of the result."""
        return "C" if self.problem.gradient is Gradient.DATA else "O"

    @cached_property
    def k(self) -> int:
        """K channels of one group: those of the data. K itself also has the taps (`Size.products`)."""
        c, o = group_sizes(self.problem.geometry)
        return o if self.problem.gradient is Gradient.DATA else c

    @property
    def is_product(self) -> bool:
        """Whether each sum is a matrix product at every tap: all positions have the same filter, and all channels read
        the same data. Where output phases begin at different positions, their channels do not."""
        groups = [group for part in self._parts for group in part.phase_groups]
        return self.is_product_by_phases and not any(len(set(group.firsts)) > 1 for group in groups)

    @property
    def is_product_by_phases(self) -> bool:
        """Whether the channels of one output phase are a matrix product at every tap."""
        return not any(any(part.over_y) for part in self._parts)

    @property
    def _parts(self) -> tuple[PhaseConvolution, ...]:
        """The convolutions of a data gradient; none for a forward."""
        return () if self.problem.gradient is Gradient.FORWARD else phase_convolutions(self.problem)

    def has_one_phase(self, n: int) -> bool:
        """Whether the channels of a block of N are of one output phase."""
        return self.n % n == 0 or all(size.n == self.n for size in self.sums)

    def phases_of_one_run(self, tile: DataTile, pairs: bool) -> tuple[int, ...]:
        """The number of output phases along each axis, if taps are innermost in the filter and those of all phases make
        one run there, whose elements go to panels of different phases; otherwise empty.

        Runs of at most `MAX_STRIDE` taps are left out: channels are strided by so few elements then that vectors along
        them are as fast, or faster (ConvNeXt's stage4_halve, data: 1.12 times; an AMD EPYC with Zen 5). Not so bf16
        `pairs`, of which strided ones are not transposed: U-Net's up4 and up3 (forward, NCX) took 0.51 and 0.88 of the
        time (an Intel Xeon with AMX)."""
        problem = self.problem
        if problem.gradient is not Gradient.DATA or not problem.filter_axes.endswith("X") or tile.groups > 1:
            return ()
        if (
            prod(problem.geometry.k) <= (1 if pairs else MAX_STRIDE)
            or problem.flips_filter
            or problem.whole.k != problem.geometry.k
        ):
            return ()
        parts = phase_convolutions(problem, tile.n, tile.positions)
        if len(parts) != 1 or any(parts[0].over_y) or self.n % tile.n:
            return ()
        groups = parts[0].phase_groups
        phases = tuple(group.phases for group in groups)
        one_run = all(group.period == group.phases and group.r_begin == 0 for group in groups)
        return phases if one_run and prod(phases) > 1 else ()

    @cached_property
    def is_depthwise(self) -> bool:
        """Whether there are several groups of one channel each, and some sum."""
        return bool(self.sums) and self.problem.geometry.is_depthwise

    @property
    def line(self) -> int:
        """Elements of the result in a cache line."""
        return CACHE_LINE // ITEM_BYTES[self.problem.output_dtype]

    @property
    def plane(self) -> int:
        """Bytes of the result of an image and a channel."""
        return prod(self.problem.geometry.x) * ITEM_BYTES[self.problem.output_dtype]

    @property
    def fills_result(self) -> bool:
        """Whether every element of a data gradient has products."""
        geometry = self.problem.geometry
        groups = [group for part in phase_convolutions(self.problem) for group in part.phase_groups]
        whole = self.problem.crop is None and reaches_all(geometry)
        return whole and not any(group.reads.has_gaps for group in groups)

    def has_large_output(self, cache: int) -> bool:
        """Whether the result has more bytes than a cache."""
        return tensor_bytes(self.problem.output_shape, self.problem.output_dtype) > cache

    @cached_property
    def read_strides(self) -> list[int]:
        """Along each axis, the distance in elements of what neighbouring positions read. It is 1 with a single tap: the
        packed data then has only the elements that are read."""
        geometry = self.problem.geometry
        forward = self.problem.gradient is Gradient.FORWARD
        return [s if forward and k > 1 else 1 for k, s in zip(geometry.k, geometry.strides)]

    @property
    def reads_neighbours(self) -> bool:
        """Whether neighbouring positions along the last axis read neighbours in the user's tensor."""
        return self.problem.gradient is not Gradient.FORWARD or self.problem.geometry.strides[-1] == 1

    @cached_property
    def halo(self) -> list[int]:
        """Along each axis, how many elements of the data a partition reads beyond positions * step."""
        geometry = self.problem.geometry
        if self.problem.gradient is Gradient.FORWARD:
            return [(k - 1) * d + 1 - step for k, d, step in zip(geometry.k, geometry.dilations, self.read_strides)]
        found = phase_convolutions(self.problem)
        return [
            max((p.phase_groups[axis].taps - 1) * p.phase_groups[axis].dilation for p in found)
            for axis in range(geometry.rank)
        ]

    def blocking(self, tile: DataTile, block_k: int, implicit_axes: int = 0, pairs: bool = False) -> Blocking:
        """The blocks that the tensor expression is rounded up to, and the type of its operands."""
        by_c = self.problem.gradient is Gradient.DATA
        c, o = (tile.n, block_k) if by_c else (block_k, tile.n)
        return Blocking(tile.groups, c, o, tile.positions, implicit_axes=implicit_axes, pairs=pairs)

    def packed(self, blocking: Blocking) -> int:
        """Elements of the data when it is packed before all work items."""
        geometry = self.problem.geometry
        views = data_views(self.problem, blocking)
        groups, c, o = blocking.operand_extents(self.problem)
        channels = groups * (o if self.problem.gradient is Gradient.DATA else c)
        return geometry.batch * channels * prod(view.extent for view in views)

    def positions(self, tile: DataTile) -> list[tuple[int, ...]]:
        """For each sum the number of positions along each axis, rounded up to a tile. If a tile has channels of several
        phases, it covers what any of them needs (`PhaseConvolution.own_first_positions` in te/data_gradient.py)."""
        blocking = self.blocking(tile, 1)
        if self.problem.gradient is Gradient.FORWARD:
            return [blocking.positions(self.problem)]
        return [part.positions for part in phase_convolutions(self.problem, blocking.c, blocking.position)]

    def m_blocks(self, tile: DataTile) -> list[list[int]]:
        """For each sum the number of images, and of tiles along each axis."""
        return [[self.problem.geometry.batch, *tile.blocks(positions)] for positions in self.positions(tile)]

    def group_blocks(self, tile: DataTile) -> int:
        """The number of tiles along the groups."""
        return ceil_to(self.problem.geometry.groups, tile.groups) // tile.groups

    def n_blocks(self, tile: DataTile) -> int:
        """The number of tiles along N, of the sum that has most."""
        return max((-(-size.n // tile.n) for size in self.sums), default=1)

    def may_leave_out_by_position(self, tile: DataTile) -> bool:
        """Whether products with padding along the last axis may be left out position by position (sum_axis.py): with
        vectors over N. With vectors over groups ResNeXt's conv3b_grouped took 1.2 times as long (an Intel Xeon with
        AMX)."""
        if tile.vector_axis is not DataAxis.N or tile.tile_rows or not self.is_product:
            return False
        last, extent = [size.axes[-1] for size in self.sums], tile.positions
        copies = [axis.copies(extent) for axis in last]
        if None in copies or sum(filter(None, copies)) > MOST_COPIES:
            return False
        computed = sum(axis.computed(extent) for axis in last)
        left_out = computed - sum(axis.computed_by_position(extent) for axis in last)
        return left_out > 0 and left_out >= LEAST_LEFT_OUT * computed

    def density(self, tile: DataTile) -> float:
        """The computed pairs of position and tap, as a share of all: at the others a tile reads nothing but padding. It
        is above 1 where none do and tiles round positions up."""
        computed = sum(size.computed(tile) for size in self.sums)
        return computed / max(sum(prod(axis.positions * axis.taps for axis in size.axes) for size in self.sums), 1)

    def products(self, tile: DataTile, count: Callable[[SumAxis, int], int] = SumAxis.computed) -> int:
        """Multiply-adds, including what tiles round up (but not BLOCK_K), without taps left out as padding. `count`
        is as in `Size.computed`."""
        sums = self.sums if self.n % tile.n == 0 else self.sums_of_phases_together
        return (
            self.problem.geometry.batch
            * self.group_blocks(tile)
            * tile.groups
            * sum(size.computed(tile, count) * ceil_to(size.n, tile.n) * self.k for size in sums)
        )


@lru_cache(maxsize=16)
def sizes_of(problem: Problem) -> DataSizes:
    """The sizes of a problem, which several rules ask for."""
    return DataSizes(problem)


def _axes(part: PhaseConvolution) -> tuple[SumAxis, ...]:
    """The axes of a data gradient's part. Where the sum goes over positions of y, every pair is computed."""
    axes = zip(part.positions, part.phase_groups, part.over_y, part.problem.geometry.y)
    return tuple(
        SumAxis(count, size, 0, 1, 0, count) if over_y else SumAxis(count, p.taps, min(p.firsts), 1, -p.dilation, size)
        for count, p, over_y, size in axes
    )
