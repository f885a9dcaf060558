"""The numbers of data gradients and forward convolutions by Winograd's algorithm: from a cost model, or from a
search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, PACKING, SHARED, STARTING, TRANSPOSING
from tvmconvgrad.schedules.cpu.packing import BLOCK_K, Packs
from tvmconvgrad.schedules.cpu.winograd.sizes import (
    K_BLOCKS,
    LEAST_WORK_ITEMS,
    MOST_VECTORS,
    PANELS_FAR,
    WinogradSizes,
)
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, largest_divisor, nearest_divisor
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.tensors import ceil_to

LEAST_PARTITION = 48
"""A work item has at least so many tiles, if there are so many: they share what it reads of the filter. With half of it
6 sums change, and take 1.07 times as long; with twice, 2 and 0.92 (benchmarks/constants.py)."""

DATA_SHARE = 0.7
"""Where work items transform the filter, the data of a partition may take this share of the workspace; their panels and
sums take the rest. With half of it 11 sums change, and take 1.04 times as long; with twice, 9 and 1.06
(benchmarks/constants.py)."""

CACHE_BLOCK = 64
"""At most so many channels of K are summed in registers before they are added to the sums in the cache. With 128 the
error of 3x3 data gradients was up to 4.8 times that of direct sums, which have cache blocks of K too, and with all of
512 channels 8.6 times; with 64 it is 3.7 times (benchmarks/accuracy.py). Beside direct sums 35 data gradients then took
1.01 times as long as with all channels (benchmarks/algorithms.py --rounds 15 in both checkouts, an Intel Xeon with
AMX). Where the number of BLOCK_K has no divisor from 2 to 4, as of 112 channels, cache blocks have 16 channels; that
was not measured."""

FROM_MEMORY = 1.5
"""Packing costs so many times as much if the filter does not fit the last-level cache. Half changes no sum; with twice,
1 sum changes, and takes 1.49 times as long (benchmarks/constants.py)."""


@dataclass(frozen=True)
class WinogradDataPlan:
    """All numbers of the schedule."""

    products: tuple[int, ...]
    """Products of a tile along each tiled axis."""
    m: tuple[int, ...]
    """Images, and tiles along each axis, that a register tile has (M)."""
    n: int
    """Channels of the result that a register tile has (N)."""
    multiples: tuple[int, ...]
    """The tiles along each axis are rounded up to multiples of these."""
    block_k: int
    """Channels of K that are innermost in packed operands (BLOCK_K)."""
    partition: tuple[int, ...]
    """Images, and tiles or positions along each axis, of a work item; interleaved tiles count as one."""
    n_partitions: int
    k_cache_blocks: int
    """K is summed in registers by so many cache blocks, one after the other."""
    packs: Packs
    """Where data is transformed; before all work items if these transform the filter."""
    non_temporal: int
    """Whether results are written by non-temporal stores."""


@dataclass(frozen=True, order=True)
class WinogradDataTile:
    """A register tile, which is chosen first; fields as in `WinogradDataPlan`."""

    m: tuple[int, ...]
    n: int
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class WinogradDataPlanner:
    """Plans a problem for a machine."""

    machine: CpuMachine
    problem: Problem
    products: tuple[int, ...]
    """Products of a tile along each tiled axis."""

    def is_applicable(self) -> bool:
        """Whether N is whole vectors where it must be: in NCX, where they are transposed, and with several output
        phases, where none may reach into the next phase."""
        return self._may_cut or self.phase_channels % self.machine.lanes == 0

    @property
    def _may_cut(self) -> bool:
        """Whether the last vector of N may reach beyond the channels."""
        return self.problem.data_format == "NXC" and self.sizes().phases == 1

    def sizes(self, tile: WinogradDataTile | None = None) -> WinogradSizes:
        """The problem by tiles, rounded up for a register tile."""
        multiples = tile.multiples if tile else (1,) * self.problem.geometry.rank
        return WinogradSizes(self.machine, self.problem, self.products, multiples)

    @property
    def channels(self) -> tuple[int, int]:
        """The channels of the data (K), and of the result in all output phases (N)."""
        geometry = self.problem.geometry
        k = geometry.o if self.problem.gradient is Gradient.DATA else geometry.c
        return k, self.sizes().phases * self.phase_channels

    @property
    def phase_channels(self) -> int:
        """The channels of the result."""
        geometry = self.problem.geometry
        return geometry.c if self.problem.gradient is Gradient.DATA else geometry.o

    @property
    def copies_result(self) -> bool:
        """Whether the result is transformed back into scratch memory and copied: it is in NCX, or vectors would reach
        beyond its channels."""
        return self.problem.data_format == "NCX" or self.phase_channels % self.machine.lanes > 0

    @property
    def block_k(self) -> int:
        """BLOCK_K in channels."""
        return min(BLOCK_K, self.channels[0])

    def tiles(self) -> Iterator[WinogradDataTile]:
        """All tiles that stay in registers. A tile that takes all of the last axis may have several rows, and one that
        takes all of an image's tiles several images."""
        *outer, last = self.sizes().axes
        before = (1,) * (len(outer) - 1)
        for width in range(1, min(last.tiles, self.machine.registers) + 1):
            multiple = width if last.tiles % width else 1
            if multiple > 1 and last.interleaved > 1:
                continue
            heights = divisors(outer[-1].runs) if outer and width == last.tiles else [1]
            for height in heights:
                tiles = (*before, height, width) if outer else (width,)
                for images in self._images(tiles):
                    for vectors in self._vectors():
                        n = vectors * self.machine.lanes
                        tile = WinogradDataTile((images, *tiles), n, (*[1] * len(outer), multiple))
                        if self.sizes().efficiency(prod(tile.m), tile.n) > 0:
                            yield tile

    def _images(self, tiles: Sequence[int]) -> Sequence[int]:
        """The numbers of images that a register tile with so many tiles along each axis may have."""
        takes_image = list(tiles) == [axis.tiles for axis in self.sizes().axes]
        return divisors(self.problem.geometry.batch) if takes_image else [1]

    def _vectors(self) -> list[int]:
        """The numbers of vectors of N that a register tile may have; in NCX, and with several output phases, where none
        may be cut off, divisors."""
        whole, may_cut = self.phase_channels // self.machine.lanes, self._may_cut
        return [n for n in range(1, MOST_VECTORS + 1) if may_cut or whole % n == 0]

    def cost(self, tile: WinogradDataTile, by_work_item: bool) -> float:
        """Cycles of one core, about: for the products, and for transforming data, filter and result. Infinite if the
        workspace would be larger than the tensors."""
        sizes, found = self.sizes(tile), self._partition(tile, by_work_item)
        if self.workspace(tile, found, by_work_item) > sizes.room:
            return inf
        k, n = ceil_to(self.channels[0], self.block_k), ceil_to(self.channels[1], tile.n)
        of_work_item, partitions = self._tiles_of(tile, found), self._n_partitions(tile, found, by_work_item)
        axes = zip(sizes.axes, found[1:])
        halo = prod((size + axis.halo) / size for axis, size in axes if not axis.tiled)
        again = partitions * halo if by_work_item else sizes.shifts
        near = sizes.is_near(sizes.products * of_work_item * (n // partitions + (k if by_work_item else 0)))
        panels_near = by_work_item or sizes.is_near(self._panel(tile) * k * n // partitions)
        cycles = sizes.summing(prod(tile.m), tile.n, k * n, panels_near)
        cycles += again * (sizes.moving(k) + sizes.transforming(k, near and by_work_item))
        cycles += sizes.transforming(n, near) + (sizes.moving(n) if self.copies_result else 0.0)
        cycles += sizes.adding(sizes.products * sizes.tiles * n, self._k_cache_blocks - 1, near)
        filters = self._packing_filter() + sizes.transforming_filter(k * n, stays=not by_work_item)
        cycles += filters if by_work_item else filters * (sizes.tiles // of_work_item)
        panels, data = sizes.products * sizes.taps * k * n, sizes.products * sizes.tiles * k
        read = panels * sizes.tiles // of_work_item if by_work_item else panels + data * n // tile.n
        far = 0.0 if sizes.is_near(panels) else PANELS_FAR * F32_BYTES * read
        return cycles + far + STARTING * LEAST_WORK_ITEMS

    def _panel(self, tile: WinogradDataTile) -> int:
        """Elements, for a pair of channels, of what a work item that transforms the filter keeps of it: all taps, and
        the products along all tiled axes but the first."""
        sizes = self.sizes(tile)
        first = next(axis.products for axis in sizes.axes if axis.tiled)
        along_first = first if sum(axis.tiled for axis in sizes.axes) > 1 else 1
        return sizes.phase_taps + sizes.products // along_first * sizes.taps

    def workspace(self, tile: WinogradDataTile, found: Sequence[int], by_work_item: bool) -> int:
        """Elements of a call's workspace on one thread: transformed data and panels, sums, and what is copied."""
        sizes, of_work_item = self.sizes(tile), self._tiles_of(tile, found)
        k, n = ceil_to(self.channels[0], self.block_k), ceil_to(self.channels[1], tile.n)
        axes = list(zip(sizes.axes, found[1:]))
        halo = prod((size + axis.halo) / size for axis, size in axes if not axis.tiled)
        kept = prod(
            size if axis.interleaved == 1 else axis.tiles for axis, size in axes
        )  # TVM keeps all that interleave
        data = int(sizes.products * found[0] * kept * halo) * k
        padded = prod(size * axis.interleaved * axis.tile + axis.halo for axis, size in axes)
        wide = n // self._n_partitions(tile, found, by_work_item)
        sums = (sizes.products + (prod(axis.tile for axis in sizes.axes) if self.copies_result else 0)) * of_work_item
        if by_work_item:
            panels = sizes.products * sizes.taps * k * n
            packed = sizes.phase_taps * self.block_k * K_BLOCKS * tile.n
            return panels + packed + data + padded * k + sums * wide
        return sizes.shifts * data + padded * self.block_k + (sums + self._panel(tile) * k) * wide

    @property
    def _k_cache_blocks(self) -> int:
        """The number of cache blocks of K."""
        k_blocks = -(-self.channels[0] // self.block_k)
        return k_blocks // largest_divisor(k_blocks, CACHE_BLOCK // self.block_k)

    def _packing_filter(self) -> float:
        size = prod(self.problem.filter_shape)
        along = self.problem.filter_axes.endswith("C" if self.problem.gradient is Gradient.DATA else "O")
        far = FROM_MEMORY if F32_BYTES * size > SHARED * self.machine.l3 else 1.0
        return far * (PACKING if along else TRANSPOSING) * size

    def least_cost(self) -> float:
        """The cost of the best tile, in cycles of one core."""
        (tile, by_work_item), *_ = _best_tiles(self)
        return self.cost(tile, by_work_item)

    def plan(self, decisions: Decisions) -> WinogradDataPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        best = _best_tiles(self)
        tile, by_work_item = best[decisions.draw("tile", range(len(best)), 0)]
        by_work_item = bool(decisions.draw("packs_by_work_item", (0, 1), int(by_work_item)))
        limits = [12 << power for power in range(10)]
        found = self._partition(
            tile, by_work_item, decisions.draw("partition", limits, self._partition_tiles(tile, by_work_item))
        )
        phases, blocks = self.sizes().phases, -(-self.phase_channels // tile.n)
        partitions = self._n_partitions(tile, found, by_work_item) // phases
        partitions = phases * decisions.draw_divisor("n_partitions", blocks, partitions)
        non_temporal = 0
        if self._may_store_non_temporally:
            non_temporal = decisions.draw("non_temporal", (0, 1), int(self._has_large_output))
        packs = Packs.WORK_ITEM if by_work_item else Packs.BEFORE
        split = found, partitions, self._k_cache_blocks
        return WinogradDataPlan(
            self.products, tile.m, tile.n, tile.multiples, self.block_k, *split, packs, non_temporal
        )

    @property
    def _may_store_non_temporally(self) -> bool:
        """Whether results may be written by non-temporal stores: each vector is a cache line."""
        is_line = self.machine.lanes * ITEM_BYTES[self.problem.output_dtype] % CACHE_LINE == 0
        may = self.machine.non_temporal and self.problem.may_bypass_caches
        return may and is_line and not self.copies_result

    @property
    def _has_large_output(self) -> bool:
        return tensor_bytes(self.problem.output_shape, self.problem.output_dtype) > self.machine.l3

    def _n_partitions(self, tile: WinogradDataTile, found: Sequence[int], by_work_item: bool) -> int:
        """The number of partitions of N, each of one output phase. If work items transform the filter, each N block is
        one. Otherwise each partition transforms its data again, so there are only as many as make enough work items."""
        sizes, blocks = self.sizes(tile), -(-self.phase_channels // tile.n)
        work_items = sizes.phases * max(sizes.tiles // self._tiles_of(tile, found), 1)
        return sizes.phases * (nearest_divisor(blocks, -(-LEAST_WORK_ITEMS // work_items)) if by_work_item else blocks)

    def _partition_tiles(self, tile: WinogradDataTile, by_work_item: bool) -> int:
        """How many tiles a partition should have: so many that their data and sums fit L2; or, if work items transform
        the filter, so many that their data takes `DATA_SHARE` of the workspace."""
        sizes, k, n = self.sizes(tile), self.channels[0], self.phase_channels
        if not by_work_item:
            return min(sizes.tiles, int(DATA_SHARE * sizes.room) // (sizes.products * sizes.shifts * k))
        elements = sizes.products * (k + n) + prod(axis.tile for axis in sizes.axes) * k
        return max(LEAST_PARTITION, self.machine.l2_blocks // (F32_BYTES * elements))

    def _tiles_of(self, tile: WinogradDataTile, found: Sequence[int]) -> int:
        return prod(found) * self.sizes(tile).interleaved

    def _partition(self, tile: WinogradDataTile, by_work_item: bool, wanted: int = 0) -> tuple[int, ...]:
        """Images, and along each axis tiles, of a work item: about `wanted` tiles. In NCX the last axis is not split,
        since rows are copied; nor are interleaved tiles."""
        sizes, wanted = self.sizes(tile), wanted or self._partition_tiles(tile, by_work_item)
        last = sizes.axes[-1]
        run = last.runs
        if self.problem.data_format == "NXC" and last.interleaved == 1:
            blocks = run // tile.m[-1]
            run = tile.m[-1] * nearest_divisor(blocks, wanted // (sizes.interleaved * prod(tile.m)))
        return tuple(sizes.part(self.problem.geometry.batch, [*tile.m[:-1], run], wanted))


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WinogradDataPlanner) -> list[tuple[WinogradDataTile, bool]]:
    """The cheapest register tiles, cheapest first, and for each whether work items transform the data."""
    every = [(tile, by_work_item) for tile in planner.tiles() for by_work_item in (False, True)]
    return sorted(every, key=lambda choice: (planner.cost(*choice), choice))[:BEST_TILES]
