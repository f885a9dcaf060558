"""The register tile of a weights gradient, and how it reads its operands and writes its sums.

Packing makes contiguous what a step of the sum reads, but costs as much as many products. An operand that few tiles use
is better read in place. If vectors are contiguous in the user's filter, tiles are added up there; otherwise they are
added up in a scratch accumulator, and converted at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import TypeVar

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import SHARED
from tvmconvgrad.schedules.cpu.tile_registers import even_rows
from tvmconvgrad.schedules.expressions import Blocking
from tvmconvgrad.schedules.expressions.access_maps import map_accesses
from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.spec.geometry import range_inside
from tvmconvgrad.te.tensors import ceil_to, group_sizes
from tvmconvgrad.tir.passes.limits import LEAST_SIDE, MAX_STRIDE

T = TypeVar("T")

LEAST_CACHE_BLOCK = 32
"""A cache block should have at least so many positions, since each cache block adds its tiles to memory. With half of
it 2 sums change, and take 1.03 times as long; with twice, 2 and 1.00 (benchmarks/constants.py). Single rows of 13 or
17, and single K blocks of AMX, made 49 sums in bf16 take 1.56 times as long, and 11 in f32 1.12 times (an Intel Xeon
with AMX). Of one axis whose length is prime it may have fewer."""

CACHE_BLOCK_IN_PLACE = 64
"""Positions of a cache block if nothing is packed. With half of it 3 sums change, and take 0.96 times as long; with
twice, 3 and 1.07 (benchmarks/constants.py)."""

L1_SHARE = 0.85
"""The share of `l1_blocks` that the positions of a cache block may fill. With half of it 3 sums change, and take 1.07
times as long; with twice, 3 and 1.09 (benchmarks/constants.py, an AMD EPYC with Zen 4)."""

FEW_READS = 8
"""Tiles may read an operand in place so many times; if they read it more often, it is packed. With half of it 2 sums
change, and take 0.84 times as long; with twice, 4 and 0.98 (benchmarks/constants.py)."""


class WeightsAxis(str, Enum):
    """The vectorised axis of a weights gradient, with the name that its rule has: channels of x or of dy, or groups."""

    C = "c"
    O = "o"  # noqa: E741 -- the field's letter
    GROUPS = "groups"


@dataclass(frozen=True, order=True)
class WeightsTile:
    """The register tile: `taps`, `c` and `o` channels, and `groups`, with vectors over `vector_axis`."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    groups: int
    vector_axis: WeightsAxis
    tile_rows: int | None = None
    """The rows of each tile register, if the sums are in those (tile_registers.py): a divisor of `c`, or all taps along
    an axis."""

    @property
    def vector(self) -> tuple[str, int]:
        """The vectorised axis, "G", "C" or "O", and how many of its elements the tile has."""
        vectors = {WeightsAxis.GROUPS: ("G", self.groups), WeightsAxis.C: ("C", self.c), WeightsAxis.O: ("O", self.o)}
        return vectors[self.vector_axis]

    def loops(self, taps: Sequence[T], c: T, o: T, groups: T) -> list[T]:
        """The tile's loops in their order, the vectorised one last."""
        channels = [o, c] if self.vector_axis is WeightsAxis.C else [c, o]
        return [*taps, *channels, groups]


def _inside(geometry: Geometry, axis: int) -> int:
    """Pairs of position and tap along an axis that read data instead of padding."""
    k, stride, dilation, pad = (
        of[axis] for of in (geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    )
    ranges = (range_inside(stride, tap * dilation - pad, geometry.y[axis], geometry.x[axis]) for tap in range(k))
    return sum(max(0, end - first) for first, end in ranges)


@dataclass(frozen=True)
class WeightsAccess:
    """How a tile of a weights gradient reads its operands and writes its sums, on a machine."""

    machine: CpuMachine
    problem: Problem
    tile: WeightsTile

    @cached_property
    def pairs(self) -> bool:
        """Whether operands are bf16 dot-product pairs: an instruction adds up the same position of two images, or of
        two halves of an image.

        If the halves share the middle row, each takes it at weight 1/2. A zero in one half would not do: times an
        infinite x it is NaN.
        """
        able = self.machine.takes_pairs(in_tile_registers=bool(self.tile.tile_rows))
        able = able and self.tile.vector_axis is not WeightsAxis.GROUPS
        return (
            able and self.problem.dtype == "bf16" and (self.problem.geometry.batch % 2 == 0 or self._image_halves_pay)
        )

    @property
    def _image_halves_pay(self) -> bool:
        """Whether image halves take fewer steps than single rows do. Of single rows, those that read only padding at a
        tap are left out; of halves none are."""
        g = self.problem.geometry
        return -(-g.y[0] // 2) * g.k[0] < _inside(g, 0)

    @cached_property
    def blocking(self) -> Blocking:
        """The blocks that the tensor expression is rounded up to, and how its operands are stored. In tile registers a
        row of x has positions side by side, as many for each instruction; rows that are halved stay as they are."""
        tile, geometry = self.tile, self.problem.geometry
        image_halves = 2 if self.pairs and geometry.batch % 2 else 1
        found = Blocking(tile.groups, tile.c, tile.o, pairs=self.pairs, image_halves=image_halves)
        if not tile.tile_rows:
            return found
        position = even_rows(geometry.y[-1], 1) if geometry.rank > 1 or image_halves == 1 else 1
        return replace(found, position=position, x_by_phases=True)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of K: images, or pairs of images or halves, and positions along each axis."""
        geometry, image_halves = self.problem.geometry, self.blocking.image_halves
        images = geometry.batch * image_halves // (2 if self.pairs else 1)
        first, *others = self.blocking.positions(self.problem)
        return (images, -(-first // image_halves), *others)

    @cached_property
    def blocks(self) -> tuple[int, int]:
        """How many channels of x, and of y, are packed together; 0: the operand is read in place.

        With vectors over groups, operands are read in place as the comment below says. In a plain matrix product both
        are read in place if the smallest cache block of both fits L1 unpacked, or if few tiles read x. Otherwise an
        operand is read in place if twice the smallest cache block of it fits L1; and so is y, if x is and few tiles
        read y. All other sums pack both here; `serves_in_place` may still spare y.
        """
        c_block, o_block = self.packed_blocks
        c_group, o_group = group_sizes(self.problem.geometry)
        if (
            self.tile.vector_axis is WeightsAxis.GROUPS
            and self.problem.data_format == "NXC"
            and self.problem.dtype == "f32"
        ):
            # With one channel a group, vectors over groups are contiguous in memory, and a position is padding for all
            # lanes or for none. So operands are read in place; but x is packed if several blocks of taps read it.
            whole = self.problem.geometry.groups % self.tile.groups == 0
            once = whole and self.tile.taps == self.problem.geometry.k
            return 0 if once and c_group == 1 else c_block, 0 if whole and o_group == 1 else o_block
        if self.broadcasts_in_place:
            return (c_block, 0) if self.tile.vector_axis is WeightsAxis.C else (0, o_block)
        if not self.is_whole_product:
            return c_block, o_block
        read = c_group * prod(self.problem.geometry.k), o_group
        x_reads, y_reads = self._line_reads
        if self.l1_positions(sum(read)) >= LEAST_CACHE_BLOCK or x_reads <= FEW_READS:
            return 0, 0
        c_fits, o_fits = (self.l1_positions(size) >= 2 * LEAST_CACHE_BLOCK for size in read)
        o_stays = o_fits or (c_fits and y_reads <= FEW_READS)
        return 0 if c_fits else c_block, 0 if o_stays else o_block

    @cached_property
    def broadcasts_in_place(self) -> bool:
        """Whether the operand of which a step broadcasts elements is read in place in NCX: f32, in whole tiles, whose
        rows cause no conflict misses in L1, and all rows none in L2; x only with a single tap, without padding and
        strides."""
        problem, tile, geometry = self.problem, self.tile, self.problem.geometry
        if problem.data_format != "NCX" or problem.dtype != "f32" or tile.tile_rows or geometry.groups > 1:
            return False
        plain = max(*geometry.k, *geometry.strides) == 1 and not any((*geometry.pads_begin, *geometry.pads_end))
        if tile.vector_axis is WeightsAxis.C:
            count, channels, positions = tile.o, geometry.o, geometry.y
        else:
            count, channels, positions = tile.c, geometry.c, geometry.x
        stride = F32_BYTES * prod(positions)
        near = count <= self.machine.rows_without_conflicts(stride) and channels <= self.machine.rows_in_l2(stride)
        return near and channels % count == 0 and (plain or tile.vector_axis is WeightsAxis.C)

    @property
    def packed_blocks(self) -> tuple[int, int]:
        """How many channels of x, and of y, are packed together if they are packed: multiples of the tile's c and o,
        or 1.

        Those of several tiles if that fills a vector, since packing works by vectors. But with several taps no more
        than one vector, since each tap reads them again from L1. With vectors over groups, those of one tile. Channel
        by channel x is packed for tile registers, and in NCX without groups the operand of which a step broadcasts
        elements: its rows need not be transposed. Not so image halves, images smaller than a vector, and x with strides
        unless it has few channels: ResNet-50's res3a_branch2a (bf16), DCGAN's judge4, and DeepLab's aspp_1x1 by halves
        (bf16) took 1.5, 1.1 and 1.7 times as long by rows (an AMD EPYC with Zen 5).
        """
        lanes, once = self.machine.lanes, prod(self.problem.geometry.k) == 1

        def packed(size: int, channels: int) -> int:
            filled = ceil_to(lanes, size)
            may = self.tile.groups == 1 and channels >= filled and (once or filled == lanes)
            return filled if may else size

        c_group, o_group = group_sizes(self.problem.geometry)
        c_block, o_block = packed(self.tile.c, c_group), packed(self.tile.o, o_group)
        if self.tile.tile_rows:
            return 1, o_block
        geometry, by_c = self.problem.geometry, self.tile.vector_axis is WeightsAxis.C
        long_rows = prod(geometry.y) >= lanes
        if geometry.groups > 1 or self.problem.data_format == "NXC" or self.blocking.image_halves > 1 or not long_rows:
            return c_block, o_block
        if by_c:
            return c_block, 1
        stride = max(geometry.strides)
        by_rows = stride == 1 or (c_group < LEAST_SIDE and stride <= MAX_STRIDE)
        return (1 if by_rows else c_block), o_block

    @property
    def implicit_axes(self) -> int:
        """The number of axes along which padding is implicit in x that is packed before all work items: all if a tile
        has a single tap and images are whole, otherwise none. In tile registers, not along the last axis."""
        rank = self.problem.geometry.rank - (1 if self.tile.tile_rows else 0)
        return rank if max(self.tile.taps) == 1 and self.blocking.image_halves == 1 else 0

    @cached_property
    def packed(self) -> tuple[int, int]:
        """Elements of x, and of y, when they are packed before all work items."""
        geometry, tile, image_halves = self.problem.geometry, self.tile, self.blocking.image_halves
        accesses = map_accesses(geometry, self.blocking.positions(self.problem), self.implicit_axes)
        x_extents = [access.view.extent for access in accesses]
        x_extents[0] -= (image_halves - 1) * (geometry.y[0] // image_halves) * accesses[0].stride
        images = image_halves * geometry.batch * ceil_to(geometry.groups, tile.groups)
        x_channels, y_channels = map(ceil_to, group_sizes(geometry), self.packed_blocks)
        return images * x_channels * prod(x_extents), images * y_channels * prod(self.extents[1:])

    @property
    def density(self) -> float:
        """The share of all pairs of position and tap that read data. The others read padding and are left out."""
        geometry = self.problem.geometry
        axes = range(geometry.rank)
        return prod(_inside(geometry, axis) / (geometry.k[axis] * geometry.y[axis]) for axis in axes)

    @cached_property
    def sums(self) -> int:
        """Elements of the filter, rounded up to whole tiles."""
        geometry, tile = self.problem.geometry, self.tile
        c_group, o_group = group_sizes(geometry)
        channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o)
        return ceil_to(geometry.groups, tile.groups) * prod(geometry.k) * channels

    @cached_property
    def is_whole_product(self) -> bool:
        """Whether the sum is a plain matrix product for each tap: f32, NXC, one group, no padding, whole tiles, and
        taps that read different positions."""
        geometry = self.problem.geometry
        plain = self.problem.data_format == "NXC" and self.problem.dtype == "f32" and geometry.groups == 1
        axes = zip(geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin, geometry.y, geometry.x)
        inside = all(pad == 0 and (k - 1) * d < s and (y - 1) * s + (k - 1) * d < x for k, s, d, pad, y, x in axes)
        return self._has_whole_channels and plain and inside

    @cached_property
    def reads_far_in_place(self) -> bool:
        """Whether the vectors of a matrix product with one tap are read in place, in tensors too large for the
        caches."""
        far = self.problem.tensor_bytes > SHARED * self.machine.l3
        block = self.blocks[self.tile.vector_axis is WeightsAxis.O]
        return far and self.is_whole_product and prod(self.problem.geometry.k) == 1 and block == 0

    @property
    def rows_displace(self) -> bool:
        """Whether the rows that a cache block reads in place cause conflict misses in L1: they share few of
        its sets."""
        c_group, o_group = group_sizes(self.problem.geometry)
        channels = o_group if self.tile.vector_axis is WeightsAxis.O else c_group
        return self.machine.rows_without_conflicts(F32_BYTES * channels) < CACHE_BLOCK_IN_PLACE

    def serves_in_place(self, o_block: int) -> bool:
        """Whether y need not be packed into blocks of `o_block` channels: its layout is the same without packing, or
        few tiles with vectors over o read it."""
        problem, tile = self.problem, self.tile
        if problem.dtype != "f32" or problem.data_format != "NXC" or problem.geometry.o % tile.o:
            return False
        seldom = tile.vector_axis is WeightsAxis.O and problem.geometry.groups == 1 and self._y_reads <= FEW_READS
        return problem.geometry.o == o_block or (seldom and not self.is_whole_product)

    @property
    def _y_reads(self) -> int:
        """How many times tiles read each element of y."""
        geometry, tile = self.problem.geometry, self.tile
        return prod(-(-k // t) for k, t in zip(geometry.k, tile.taps)) * -(-geometry.c // tile.c)

    @property
    def _line_reads(self) -> tuple[int, int]:
        """How many times tiles read each cache line of x, and of y, in matrix products."""
        geometry, tile, line = self.problem.geometry, self.tile, CACHE_LINE // F32_BYTES
        return geometry.o // tile.o * -(-line // tile.c), geometry.c // tile.c * -(-line // tile.o)

    def l1_positions(self, channels: int) -> int:
        """How many positions of so many f32 channels fit their share of L1."""
        return int(L1_SHARE * self.machine.l1_blocks) // (F32_BYTES * channels)

    @property
    def writes_along(self) -> bool:
        """Whether the tile's vectors are contiguous in the user's filter."""
        return self.problem.filter_axes.endswith(self.tile.vector_axis.value.upper())

    @property
    def writes_result(self) -> bool:
        """Whether tiles are added up in place, in the result: it is f32, has whole tiles, and vectors are
        contiguous."""
        return self.problem.output_dtype == "f32" and self.writes_along and self._has_whole_channels

    def finishes_by_work_item(self, split_k: int, partitions: Sequence[int]) -> bool:
        """Whether each work item converts its part of the filter to the user's order and type, with so many
        `partitions` of groups, o and c. It does if the filter needs no other work item's sums, and if no condition cuts
        off surplus channels inside of its vectors."""
        if split_k > 1 or self.problem.geometry.groups > 1:
            return False
        c_group, o_group = group_sizes(self.problem.geometry)
        _, o_partitions, c_partitions = partitions
        whole = {
            "C": c_partitions == 1 or c_group % self.tile.c == 0,
            "O": o_partitions == 1 or o_group % self.tile.o == 0,
        }
        axis, _ = self.tile.vector
        return whole[axis] if self.writes_along else all(whole.values())

    @property
    def _has_whole_channels(self) -> bool:
        """Whether the channels of a group make whole tiles."""
        c_group, o_group = group_sizes(self.problem.geometry)
        return c_group % self.tile.c == 0 and o_group % self.tile.o == 0

    @property
    def packs_to_registers(self) -> bool:
        """Whether operands are packed to registers: in depthwise sums of 16 bits with all taps in one tile, a short run
        of positions is converted once, and the registers serve all taps."""
        geometry, tile = self.problem.geometry, self.tile
        return tile.groups > 1 and geometry.is_depthwise and tile.taps == geometry.k and self.problem.dtype != "f32"
