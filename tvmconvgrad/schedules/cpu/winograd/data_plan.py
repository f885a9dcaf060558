"""The numbers of sums over positions by Winograd's algorithm, from a model of the machine, or drawn by a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, Machine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, PACKING, SHARED, STARTING, TRANSPOSING
from tvmconvgrad.schedules.cpu.winograd.sizes import LEAST_TASKS, MOST_VECTORS, SUMMED, Sizes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, nearest_divisor
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.te.winograd import TILE, tiled_axes

LEAST_RANGE = 48
"""Tiles of a task, if there are so many: all of them share what each reads of the filter."""

PANELS_FAR = 0.02
"""Cycles that a byte of the transformed filter takes from beyond the L2 cache, which each task reads."""

FROM_MEMORY = 1.5
"""How much more it costs to extend a filter that does not stay in the last-level cache."""


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    rows: tuple[int, ...]
    """Tiles that a register tile has along each axis."""
    columns: int
    """Channels of the result that it has."""
    multiples: tuple[int, ...]
    """Of what numbers the tiles along each axis are multiples."""
    summed: int
    """Channels that are summed in one run."""
    range: tuple[int, ...]
    """Images, and tiles or positions along each axis, of a task; tiles that interleave count as one."""
    column_ranges: int
    packs: str
    """Where data is transformed: in each "task", or "before" all tasks, which then transform the filter."""
    streams: int
    """Whether results are stored past the caches."""


@dataclass(frozen=True, order=True)
class Tile:
    """A register tile: what is chosen first."""

    rows: tuple[int, ...]
    columns: int
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class Planner:
    """Plans a problem for a machine."""

    machine: Machine
    problem: Problem

    def takes(self) -> bool:
        """Whether there is a data gradient or forward convolution with three taps along an axis; in NCX, with a number
        of vectors of channels, since these are transposed."""
        by_vectors = self.problem.data_format == "NXC" or self.channels[1] % self.machine.lanes == 0
        return self.problem.gradient is not Gradient.FILTER and any(tiled_axes(self.problem)) and by_vectors

    def sizes(self, tile: Tile | None = None) -> Sizes:
        """The problem by tiles, rounded up for a register tile."""
        multiples = tile.multiples if tile else (1,) * self.problem.geometry.rank
        return Sizes(self.machine, self.problem, multiples)

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

    def tiles(self) -> Iterator[Tile]:
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
                    tile = Tile(rows, vectors * self.machine.lanes, (*[1] * len(outer), multiple))
                    if self.sizes().efficiency(prod(rows), tile.columns) > 0:
                        yield tile

    def _vectors(self) -> list[int]:
        """How many vectors of columns a register tile may have: in NCX, where none is cut off, parts of all."""
        whole = self.channels[1] // self.machine.lanes
        return [n for n in range(1, MOST_VECTORS + 1) if self.problem.data_format == "NXC" or whole % n == 0]

    def cost(self, tile: Tile, by_task: bool) -> float:
        """Cycles of one core, about: of the products, and of transforming data, filter and result."""
        sizes, found = self.sizes(tile), self._range(tile, by_task)
        summed, columns = ceil_to(self.channels[0], self.summed), ceil_to(self.channels[1], tile.columns)
        of_task, ranges = self._tiles_of(tile, found), self._column_ranges(tile, found, by_task)
        axes = zip(sizes.axes, found[1:])
        halo = prod((size + axis.taps - 1) / size for axis, size in axes if not axis.tiled)
        again = ranges * halo if by_task else 1
        near = sizes.is_near(sizes.products * of_task * (columns // ranges + (summed if by_task else 0)))
        cycles = sizes.summing(prod(tile.rows), tile.columns, summed * columns) + STARTING * LEAST_TASKS
        cycles += again * (sizes.moving(summed) + sizes.transforming(summed, near and by_task))
        cycles += sizes.transforming(columns, near) + (sizes.moving(columns) if self.copies_result else 0.0)
        cycles += self._packing_filter() + sizes.transforming_filter(summed * columns, stays=not by_task)
        panels, data = sizes.products * sizes.taps * summed * columns, sizes.products * sizes.tiles * summed
        read = panels * sizes.tiles // of_task if by_task else panels + data * columns // tile.columns
        return cycles + (0.0 if sizes.is_near(panels) else PANELS_FAR * F32_BYTES * read)

    def _packing_filter(self) -> float:
        size = prod(self.problem.filter_shape)
        along = self.problem.filter_axes.endswith("C" if self.problem.gradient is Gradient.DATA else "O")
        far = FROM_MEMORY if F32_BYTES * size > SHARED * self.machine.l3 else 1.0
        return far * (PACKING if along else TRANSPOSING) * size

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        (tile, by_task), *_ = _best_tiles(self)
        return self.cost(tile, by_task)

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        tile, by_task = best[decisions.draw("tile", range(len(best)), 0)]
        by_task = bool(decisions.draw("packs_by_task", (0, 1), int(by_task)))
        limits = [12 << power for power in range(10)]
        found = self._range(tile, by_task, decisions.draw("range", limits, self._range_tiles(tile, by_task)))
        blocks = -(-self.channels[1] // tile.columns)
        ranges = decisions.draw_divisor("column_ranges", blocks, self._column_ranges(tile, found, by_task))
        streams = 0
        if self._may_stream:
            streams = decisions.draw("streams", (0, 1), int(self._has_large_output))
        packs = "task" if by_task else "before"
        return Plan(tile.rows, tile.columns, tile.multiples, self.summed, found, ranges, packs, streams)

    @property
    def _may_stream(self) -> bool:
        """Whether results may be stored past the caches: each vector is a cache line."""
        is_line = self.machine.lanes * ITEM_BYTES[self.problem.dtype] % CACHE_LINE == 0
        return self.machine.streams and is_line and not self.copies_result

    @property
    def _has_large_output(self) -> bool:
        return tensor_bytes(self.problem.output_shape, self.problem.dtype) > self.machine.l3

    def _column_ranges(self, tile: Tile, found: Sequence[int], by_task: bool) -> int:
        """Into how many ranges columns are split: each column block, where tasks transform the filter; else each range
        transforms its data anew, and there are as many as tasks lack."""
        blocks = -(-self.channels[1] // tile.columns)
        tasks = max(self.sizes(tile).tiles // self._tiles_of(tile, found), 1)
        return nearest_divisor(blocks, -(-LEAST_TASKS // tasks)) if by_task else blocks

    def _range_tiles(self, tile: Tile, by_task: bool) -> int:
        """How many tiles a task should have: those of which data and sums stay in the L2 cache; all, where it
        transforms the filter."""
        sizes, (summed, columns) = self.sizes(tile), self.channels
        if not by_task:
            return sizes.tiles
        elements = sizes.products * (summed + columns) + prod([TILE] * sizes.tiled) * summed
        return max(LEAST_RANGE, self.machine.l2 // (F32_BYTES * elements))

    def _tiles_of(self, tile: Tile, found: Sequence[int]) -> int:
        return prod(found) * self.sizes(tile).interleaved

    def _range(self, tile: Tile, by_task: bool, wanted: int = 0) -> tuple[int, ...]:
        """Images, and along each axis tiles, of a task, about `wanted` tiles. In NCX the last axis stays whole, since
        rows are copied, and so do tiles that interleave."""
        sizes, wanted = self.sizes(tile), wanted or self._range_tiles(tile, by_task)
        last = sizes.axes[-1]
        run = last.runs
        if self.problem.data_format == "NXC" and last.interleaved == 1:
            blocks = run // tile.rows[-1]
            run = tile.rows[-1] * nearest_divisor(blocks, wanted // (sizes.interleaved * prod(tile.rows)))
        return tuple(sizes.part(self.problem.geometry.batch, [1, *tile.rows[:-1], run], wanted))


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: Planner) -> list[tuple[Tile, bool]]:
    """The cheapest register tiles, and whether tasks transform the data for them, cheapest first."""
    every = [(tile, by_task) for tile in planner.tiles() for by_task in (False, True)]
    return sorted(every, key=lambda choice: (planner.cost(*choice), choice))[:BEST_TILES]
