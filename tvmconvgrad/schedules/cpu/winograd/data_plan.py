"""The numbers of sums over positions by Winograd's algorithm, from a model of the machine, or drawn by a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, PACKING, SHARED, STARTING, TRANSPOSING
from tvmconvgrad.schedules.cpu.winograd.sizes import LEAST_TASKS, MOST_VECTORS, SUMMED, WinogradSizes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, nearest_divisor
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.te.winograd import TILE, tiled_axes

LEAST_RANGE = 48
"""Tiles of a work item, if there are so many: all of them share what each reads of the filter."""

PANELS_FAR = 0.02
"""Cycles that a byte of the transformed filter takes from beyond the L2 cache, which each work item reads."""

FROM_MEMORY = 1.5
"""How much more it costs to extend a filter that does not stay in the last-level cache."""


@dataclass(frozen=True)
class WinogradDataPlan:
    """All numbers of the schedule."""

    rows: tuple[int, ...]
    """Tiles that a register tile has along each axis."""
    columns: int
    """Channels of the result that it has."""
    multiples: tuple[int, ...]
    """Of what numbers the tiles along each axis are multiples."""
    summed: int
    """Channels that are summed in one run."""
    partition: tuple[int, ...]
    """Images, and tiles or positions along each axis, of a work item; tiles that interleave count as one."""
    n_partitions: int
    packs: str
    """Where data is transformed: in each "work_item", or "before" all work items, which then transform the filter."""
    non_temporal: int
    """Whether results are written by non-temporal stores."""


@dataclass(frozen=True, order=True)
class WinogradDataTile:
    """A register tile: what is chosen first."""

    rows: tuple[int, ...]
    columns: int
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class WinogradDataPlanner:
    """Plans a problem for a machine."""

    machine: CpuMachine
    problem: Problem

    def takes(self) -> bool:
        """Whether there is a data gradient or forward convolution with three taps along an axis; in NCX, with a number
        of vectors of channels, since these are transposed."""
        by_vectors = self.problem.data_format == "NXC" or self.channels[1] % self.machine.lanes == 0
        return self.problem.gradient is not Gradient.FILTER and any(tiled_axes(self.problem)) and by_vectors

    def sizes(self, tile: WinogradDataTile | None = None) -> WinogradSizes:
        """The problem by tiles, rounded up for a register tile."""
        multiples = tile.multiples if tile else (1,) * self.problem.geometry.rank
        return WinogradSizes(self.machine, self.problem, multiples)

    @property
    def channels(self) -> tuple[int, int]:
        """How many are summed, and how many the result has."""
        geometry = self.problem.geometry
        return (geometry.o, geometry.c) if self.problem.gradient is Gradient.DATA else (geometry.c, geometry.o)

    @property
    def copies_result(self) -> bool:
        """Whether the result is transformed back aside: it lies otherwise, or vectors would go beyond its channels."""
        return self.problem.data_format == "NCX" or self.channels[1] % self.machine.lanes > 0

    @property
    def summed(self) -> int:
        """Channels of a run."""
        return min(SUMMED, self.channels[0])

    def tiles(self) -> Iterator[WinogradDataTile]:
        """All register tiles that stay in registers. Where one takes all of the last axis, it may have several rows."""
        *outer, last = self.sizes().axes
        before = (1,) * (len(outer) - 1)
        for width in range(1, min(last.tiles, self.machine.registers) + 1):
            multiple = width if last.tiles % width else 1
            if multiple > 1 and last.interleaved > 1:
                continue
            heights = divisors(outer[-1].runs) if outer and width == last.tiles else [1]
            for height in heights:
                for vectors in self._vectors():
                    rows = (*before, height, width) if outer else (width,)
                    tile = WinogradDataTile(rows, vectors * self.machine.lanes, (*[1] * len(outer), multiple))
                    if self.sizes().efficiency(prod(rows), tile.columns) > 0:
                        yield tile

    def _vectors(self) -> list[int]:
        """How many vectors of columns a register tile may have: in NCX, where none is cut off, parts of all."""
        whole = self.channels[1] // self.machine.lanes
        return [n for n in range(1, MOST_VECTORS + 1) if self.problem.data_format == "NXC" or whole % n == 0]

    def cost(self, tile: WinogradDataTile, by_work_item: bool) -> float:
        """Cycles of one core, about: of the products, and of transforming data, filter and result."""
        sizes, found = self.sizes(tile), self._partition(tile, by_work_item)
        summed, columns = ceil_to(self.channels[0], self.summed), ceil_to(self.channels[1], tile.columns)
        of_work_item, partitions = self._tiles_of(tile, found), self._column_partitions(tile, found, by_work_item)
        axes = zip(sizes.axes, found[1:])
        halo = prod((size + axis.taps - 1) / size for axis, size in axes if not axis.tiled)
        again = partitions * halo if by_work_item else 1
        near = sizes.is_near(sizes.products * of_work_item * (columns // partitions + (summed if by_work_item else 0)))
        cycles = sizes.summing(prod(tile.rows), tile.columns, summed * columns) + STARTING * LEAST_TASKS
        cycles += again * (sizes.moving(summed) + sizes.transforming(summed, near and by_work_item))
        cycles += sizes.transforming(columns, near) + (sizes.moving(columns) if self.copies_result else 0.0)
        cycles += self._packing_filter() + sizes.transforming_filter(summed * columns, stays=not by_work_item)
        panels, data = sizes.products * sizes.taps * summed * columns, sizes.products * sizes.tiles * summed
        read = panels * sizes.tiles // of_work_item if by_work_item else panels + data * columns // tile.columns
        return cycles + (0.0 if sizes.is_near(panels) else PANELS_FAR * F32_BYTES * read)

    def _packing_filter(self) -> float:
        size = prod(self.problem.filter_shape)
        along = self.problem.filter_axes.endswith("C" if self.problem.gradient is Gradient.DATA else "O")
        far = FROM_MEMORY if F32_BYTES * size > SHARED * self.machine.l3 else 1.0
        return far * (PACKING if along else TRANSPOSING) * size

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        (tile, by_work_item), *_ = _best_tiles(self)
        return self.cost(tile, by_work_item)

    def plan(self, decisions: Decisions) -> WinogradDataPlan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        tile, by_work_item = best[decisions.draw("tile", range(len(best)), 0)]
        by_work_item = bool(decisions.draw("packs_by_work_item", (0, 1), int(by_work_item)))
        limits = [12 << power for power in range(10)]
        found = self._partition(
            tile, by_work_item, decisions.draw("partition", limits, self._partition_tiles(tile, by_work_item))
        )
        blocks = -(-self.channels[1] // tile.columns)
        partitions = decisions.draw_divisor("n_partitions", blocks, self._column_partitions(tile, found, by_work_item))
        non_temporal = 0
        if self._may_store_non_temporally:
            non_temporal = decisions.draw("non_temporal", (0, 1), int(self._has_large_output))
        packs = "work_item" if by_work_item else "before"
        return WinogradDataPlan(
            tile.rows, tile.columns, tile.multiples, self.summed, found, partitions, packs, non_temporal
        )

    @property
    def _may_store_non_temporally(self) -> bool:
        """Whether results may be written by non-temporal stores: each vector is a cache line."""
        is_line = self.machine.lanes * ITEM_BYTES[self.problem.dtype] % CACHE_LINE == 0
        return self.machine.non_temporal and is_line and not self.copies_result

    @property
    def _has_large_output(self) -> bool:
        return tensor_bytes(self.problem.output_shape, self.problem.dtype) > self.machine.l3

    def _column_partitions(self, tile: WinogradDataTile, found: Sequence[int], by_work_item: bool) -> int:
        """Into how many partitions columns are split: each column block, where work items transform the filter; else
        each partition transforms its data anew, and there are as many as work items lack."""
        blocks = -(-self.channels[1] // tile.columns)
        work_items = max(self.sizes(tile).tiles // self._tiles_of(tile, found), 1)
        return nearest_divisor(blocks, -(-LEAST_TASKS // work_items)) if by_work_item else blocks

    def _partition_tiles(self, tile: WinogradDataTile, by_work_item: bool) -> int:
        """How many tiles a work item should have: those of which data and sums stay in the L2 cache; all, where it
        transforms the filter."""
        sizes, (summed, columns) = self.sizes(tile), self.channels
        if not by_work_item:
            return sizes.tiles
        elements = sizes.products * (summed + columns) + prod([TILE] * sizes.tiled) * summed
        return max(LEAST_RANGE, self.machine.l2 // (F32_BYTES * elements))

    def _tiles_of(self, tile: WinogradDataTile, found: Sequence[int]) -> int:
        return prod(found) * self.sizes(tile).interleaved

    def _partition(self, tile: WinogradDataTile, by_work_item: bool, wanted: int = 0) -> tuple[int, ...]:
        """Images, and along each axis tiles, of a work item, about `wanted` tiles. In NCX the last axis stays whole,
        since rows are copied, and so do tiles that interleave."""
        sizes, wanted = self.sizes(tile), wanted or self._partition_tiles(tile, by_work_item)
        last = sizes.axes[-1]
        run = last.runs
        if self.problem.data_format == "NXC" and last.interleaved == 1:
            blocks = run // tile.rows[-1]
            run = tile.rows[-1] * nearest_divisor(blocks, wanted // (sizes.interleaved * prod(tile.rows)))
        return tuple(sizes.part(self.problem.geometry.batch, [1, *tile.rows[:-1], run], wanted))


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WinogradDataPlanner) -> list[tuple[WinogradDataTile, bool]]:
    """The cheapest register tiles, and whether work items transform the data for them, cheapest first."""
    every = [(tile, by_work_item) for tile in planner.tiles() for by_work_item in (False, True)]
    return sorted(every, key=lambda choice: (planner.cost(*choice), choice))[:BEST_TILES]
