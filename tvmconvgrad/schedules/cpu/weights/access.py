"""The register tile of a filter gradient, and how it reads its operands and writes its sums.

A copy puts side by side what a step of the sum reads, but costs as much as many products: where few wait for it, data
is better read where it lies. And sums are better added up in the user's filter, where vectors lie along its memory,
than brought there at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import SHARED
from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.tensors import ceil_to, group_sizes
from tvmconvgrad.te.views import map_accesses

T = TypeVar("T")

LEAST_CHUNK = 32
"""Positions of a cache block, at least: each cache block adds its tiles to memory."""

CHUNK_IN_PLACE = 64
"""Positions of a cache block of which nothing is packed."""

FEW_SWEEPS = 8
"""How many times tiles of some of an operand's channels may read it where it lies: for more it is worth a copy."""


@dataclass(frozen=True, order=True)
class WeightsTile:
    """The register tile: `taps` x `c` x `o` channels x `groups`, with vectors over `vector_axis`."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    groups: int
    vector_axis: str

    @property
    def vector(self) -> tuple[str, int]:
        """The axis that vectors lie along, "G", "C" or "O", and how many of its elements the tile has."""
        return {"groups": ("G", self.groups), "c": ("C", self.c), "o": ("O", self.o)}[self.vector_axis]

    def loops(self, taps: Sequence[T], c: T, o: T, groups: T) -> list[T]:
        """The tile's loops in their order, the vector's last."""
        channels = {"o": [c, o, groups], "c": [o, c, groups], "groups": [c, o, groups]}
        return [*taps, *channels[self.vector_axis]]


def _met(geometry: Geometry, axis: int) -> int:
    """At how many positions along an axis the taps meet data, all of them together."""
    k, stride, dilation, pad = (
        of[axis] for of in (geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    )
    begins = (tap * dilation - pad for tap in range(k))
    ends = [(max(0, -(begin // stride)), (geometry.x[axis] - 1 - begin) // stride + 1) for begin in begins]
    return sum(max(0, min(last, geometry.y[axis]) - first) for first, last in ends)


@dataclass(frozen=True)
class WeightsAccess:
    """What a tile of a filter gradient reads and writes, on a machine."""

    machine: CpuMachine
    problem: Problem
    tile: WeightsTile

    @cached_property
    def pairs(self) -> bool:
        """Whether the operands are bf16, of which an instruction adds up two images, or halves of images, at a time.

        Where the halves of images have a row in common, each adds up half of it: a zero in one of them, times an
        infinite x, would be no zero.
        """
        able = self.machine.multiplies_pairs and self.tile.vector_axis != "groups"
        return (
            able and self.problem.dtype == "bf16" and (self.problem.geometry.batch % 2 == 0 or self._image_halves_pay)
        )

    @property
    def _image_halves_pay(self) -> bool:
        """Whether rows in pairs are fewer steps than those rows alone that taps meet data at: of halves of images none
        are left out."""
        g = self.problem.geometry
        return -(-g.y[0] // 2) * g.k[0] < _met(g, 0)

    @cached_property
    def multiples(self) -> Multiples:
        """What the tensor expression is rounded up to, and the type of its operands."""
        tile, image_halves = self.tile, 2 if self.pairs and self.problem.geometry.batch % 2 else 1
        return Multiples(tile.groups, tile.c, tile.o, pairs=self.pairs, image_halves=image_halves)

    @property
    def extents(self) -> tuple[int, ...]:
        """The steps of the sum: images, or pairs, and positions along each axis."""
        geometry, image_halves = self.problem.geometry, self.multiples.image_halves
        images = geometry.batch * image_halves // (2 if self.pairs else 1)
        return (images, -(-geometry.y[0] // image_halves), *geometry.y[1:])

    @cached_property
    def blocks(self) -> tuple[int, int]:
        """How many channels of x, and of y, are packed together; 0: none.

        In matrix products, data whose cache block fits L1 as it lies is not packed, nor is x where few tiles read it,
        nor y where few do beside such x.
        """
        c_block, o_block = self.packed_blocks
        c_group, o_group = group_sizes(self.problem.geometry)
        if self.tile.vector_axis == "groups" and self.problem.data_format == "NXC" and self.problem.dtype == "f32":
            # Lanes side by side in memory are read where they lie; that a position is a pad holds for all of them. x is
            # worth a copy without the pads where it is read for several blocks of taps.
            whole = self.problem.geometry.groups % self.tile.groups == 0
            once = whole and self.tile.taps == self.problem.geometry.k
            return 0 if once and c_group == 1 else c_block, 0 if whole and o_group == 1 else o_block
        if not self.is_whole_product:
            return c_block, o_block
        read = c_group * prod(self.problem.geometry.k), o_group
        x_sweeps, y_sweeps = self._line_sweeps
        if self.l1_positions(sum(read)) >= LEAST_CHUNK or x_sweeps <= FEW_SWEEPS:
            return 0, 0
        c_fits, o_fits = (self.l1_positions(size) >= 2 * LEAST_CHUNK for size in read)
        o_stays = o_fits or (c_fits and y_sweeps <= FEW_SWEEPS)
        return 0 if c_fits else c_block, 0 if o_stays else o_block

    @property
    def packed_blocks(self) -> tuple[int, int]:
        """How many channels of x, and of y, are packed together where a tile reads c and o of them.

        Some tiles' where that fills a vector, since they are copied that way; but no more than a vector where each tap
        reads them again, from L1; and of groups, all are copied at once.
        """
        lanes, once = self.machine.lanes, prod(self.problem.geometry.k) == 1

        def packed(size: int, channels: int) -> int:
            filled = ceil_to(lanes, size)
            may = self.tile.groups == 1 and channels >= filled and (once or filled == lanes)
            return filled if may else size

        c_group, o_group = group_sizes(self.problem.geometry)
        return packed(self.tile.c, c_group), packed(self.tile.o, o_group)

    @property
    def implicit_axes(self) -> int:
        """Along how many axes no pads are stored of x, packed before all work items: a position is a step of its own,
        and along all of them where taps are, too."""
        return self.problem.geometry.rank if max(self.tile.taps) == 1 and self.multiples.image_halves == 1 else 0

    @cached_property
    def packed(self) -> tuple[int, int]:
        """Elements of x, and of y, as stages that are packed before all work items."""
        geometry, tile, image_halves = self.problem.geometry, self.tile, self.multiples.image_halves
        sweeps = map_accesses(geometry, geometry.y, self.implicit_axes)
        x_extents = [sweep.view.extent for sweep in sweeps]
        x_extents[0] -= (image_halves - 1) * (geometry.y[0] // image_halves) * sweeps[0].stride
        images = image_halves * geometry.batch * ceil_to(geometry.groups, tile.groups)
        x_channels, y_channels = map(ceil_to, group_sizes(geometry), self.packed_blocks)
        return images * x_channels * prod(x_extents), images * y_channels * prod(self.extents[1:])

    @property
    def met(self) -> float:
        """The share of the products that meet data: where a tap reads nothing but padding they are left out."""
        geometry = self.problem.geometry
        axes = range(geometry.rank)
        return prod(_met(geometry, axis) / (geometry.k[axis] * geometry.y[axis]) for axis in axes)

    @cached_property
    def sums(self) -> int:
        """Elements of the filter that whole tiles add up."""
        geometry, tile = self.problem.geometry, self.tile
        c_group, o_group = group_sizes(geometry)
        channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o)
        return ceil_to(geometry.groups, tile.groups) * prod(geometry.k) * channels

    @cached_property
    def is_whole_product(self) -> bool:
        """Whether the sum is a plain matrix product, or one for each tap with rows of its own, of f32 rows of channels,
        none of them pads, in whole tiles."""
        geometry = self.problem.geometry
        plain = self.problem.data_format == "NXC" and self.problem.dtype == "f32" and geometry.groups == 1
        axes = zip(geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin, geometry.y, geometry.x)
        inside = all(pad == 0 and (k - 1) * d < s and (y - 1) * s + (k - 1) * d < x for k, s, d, pad, y, x in axes)
        return self._has_whole_channels and plain and inside

    @cached_property
    def reads_far_in_place(self) -> bool:
        """Whether the vectors of a matrix product are read where they lie, in tensors that come from memory."""
        far = self.problem.tensor_bytes > SHARED * self.machine.l3
        block = self.blocks[self.tile.vector_axis == "o"]
        return far and self.is_whole_product and prod(self.problem.geometry.k) == 1 and block == 0

    @property
    def rows_displace(self) -> bool:
        """Whether rows of the vectors' channels, in a cache block in place, lie so that they share few sets of L1."""
        c_group, o_group = group_sizes(self.problem.geometry)
        channels = o_group if self.tile.vector_axis == "o" else c_group
        return self.machine.rows_apart(F32_BYTES * channels) < CHUNK_IN_PLACE

    def serves_in_place(self, o_block: int) -> bool:
        """Whether y is as well read where it lies as in blocks of so many channels: it lies as those would, or few
        tiles of vectors over o read it."""
        problem, tile = self.problem, self.tile
        if problem.dtype != "f32" or problem.data_format != "NXC" or problem.geometry.o % tile.o:
            return False
        seldom = tile.vector_axis == "o" and problem.geometry.groups == 1 and self._y_sweeps <= FEW_SWEEPS
        return problem.geometry.o == o_block or (seldom and not self.is_whole_product)

    @property
    def _y_sweeps(self) -> int:
        """How many times tiles read each element of y."""
        geometry, tile = self.problem.geometry, self.tile
        return prod(-(-k // t) for k, t in zip(geometry.k, tile.taps)) * -(-geometry.c // tile.c)

    @property
    def _line_sweeps(self) -> tuple[int, int]:
        """How many times tiles read each cache line of x, and of y, in matrix products."""
        geometry, tile, line = self.problem.geometry, self.tile, CACHE_LINE // F32_BYTES
        return geometry.o // tile.o * -(-line // tile.c), geometry.c // tile.c * -(-line // tile.o)

    def l1_positions(self, channels: int) -> int:
        """How many positions fit the L1 cache with a little left, each of so many channels."""
        return int(0.85 * self.machine.l1) // (F32_BYTES * channels)

    @property
    def writes_along(self) -> bool:
        """Whether the tile's vectors lie along the filter's memory."""
        return self.problem.filter_axes.endswith(self.tile.vector_axis.upper())

    @property
    def writes_result(self) -> bool:
        """Whether tiles are added up in the result itself: f32, nothing rounded up, vectors along its memory."""
        return self.problem.dtype == "f32" and self.writes_along and self._has_whole_channels

    def finishes_by_work_item(self, split_k: int, partitions: Sequence[int]) -> bool:
        """Whether each work item, of so many partitions of groups, o and c, brings its part of the filter into the
        user's order and type: all of what it has added up, where no condition cuts off what is rounded up inside of its
        vectors."""
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
        """Whether the channels of a group are a number of tiles."""
        c_group, o_group = group_sizes(self.problem.geometry)
        return c_group % self.tile.c == 0 and o_group % self.tile.o == 0

    @property
    def packs_to_registers(self) -> bool:
        """Whether all taps of depthwise sums are in one tile and read 16 bits: of a short run of positions these are
        converted once, into registers that serve all taps."""
        geometry, tile = self.problem.geometry, self.tile
        depthwise = tile.groups > 1 and group_sizes(geometry) == (1, 1)
        return depthwise and tile.taps == geometry.k and self.problem.dtype != "f32"
