"""The numbers of a schedule of filter gradients with vectors over positions, from a model of the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tvmconvgrad.machines.cpu import F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import ADDING_LANES, BEST_TILES, BORDERED, PACKING
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, inner_extents, largest_divisor
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.tensors import ceil_to, group_sizes
from tvmconvgrad.tir.annotations import MOST_APART

TASKS = 16
"""How many parallel work items a kernel should have at least: enough for many cores, few enough to stay large."""

ROWS = (14, 8)
"""Rows of positions in a tile, at most, of up to two vectors each, and of more: more are a long program, and save
little."""

WHOLE_ROWS = 16
"""Vectors of whole rows in a tile, at most."""

LOADING = 0.4
LOADING_MANY, LOADING_MANY_UNMASKED = 1.0, 2.0
"""What a vector that is loaded costs, as a part of an FMA. Two start in a cycle, and most are in two cache lines; where
many channels meet, most come from the L2 cache, and without registers of masks the loop has others to spare."""

MASKED_LANES = 8
"""Machines with vectors of at least so many lanes load some of them only; where shorter ones are, each lane would be
asked for."""

AHEAD = 1024
"""How many elements ahead data is fetched."""

ADDING_TILE, ADDING_FAR_TILE = 4.0, 12.0
"""Cycles to add a vector of sums to one in the L2 cache, or beyond it."""

LEAST_CHUNK = 128
"""Vectors of a cache block, at least: each cache block adds its tiles to memory."""

ENOUGH = 8
"""Sums that keep the units busy."""


@dataclass(frozen=True, order=True)
class RowsTile:
    """The register tile: vectors of `lanes` positions in `rows` rows, for `taps` x `c` x `o` channels of a group."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    rows: int
    lanes: int

    @property
    def sums(self) -> int:
        """How many vectors of sums the tile has."""
        return prod(self.taps) * self.c * self.o


@dataclass(frozen=True)
class RowsPlan:
    """All numbers of the schedule."""

    tile: RowsTile
    in_place: bool
    """Whether the data is read where it lies; else it is copied with zeros around it."""
    cache_block: tuple[int, ...]
    """Images and positions of a cache block; along the last axis, vectors."""
    split_k: int
    g_partitions: int
    whole_rows: bool
    """Whether a tile has whole rows: the masks of its vectors are then constants."""
    fetch: int
    """How many rows ahead the data is fetched that is read where it lies; 0: not at all."""


@dataclass(frozen=True)
class RowsPlanner:
    """Plans a filter gradient, with vectors over positions, for a machine."""

    machine: CpuMachine
    problem: Problem

    def takes(self) -> bool:
        """Whether the rule is for this problem: a filter gradient of data that lies by channels, depthwise or not
        grouped. Where many channels meet, each would pick anew what a stride sets apart, and have masks of its own."""
        geometry = self.problem.geometry
        ncx = self.problem.gradient is Gradient.FILTER and self.problem.data_format == "NCX"
        whole = geometry.strides[-1] == 1 and (self.machine.masked_stores or prod(geometry.k) == 1)
        return ncx and (self._is_depthwise or (geometry.groups == 1 and whole))

    @property
    def _is_depthwise(self) -> bool:
        return self.problem.geometry.groups == self.problem.geometry.c == self.problem.geometry.o

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return min(self._cost(tile) for tile in self._tiles())

    def plan(self, decisions: Decisions) -> RowsPlan:
        """The numbers, from the machine and the sizes of the problem."""
        tiles = self._best_tiles()
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        geometry = self.problem.geometry
        *outer, last = geometry.y
        extents = (geometry.batch, *outer, -(-last // tile.lanes))
        limits = [8 << power for power in range(8)]
        cache_block = tuple(inner_extents(extents, decisions.draw("cache_block", limits, self._cache_block(tile))))
        cache_blocks = prod(extents) // prod(cache_block)
        split_k = decisions.draw_divisor("split_k", cache_blocks, self._least_split_k)
        g_partitions = decisions.draw_divisor("g_partitions", geometry.groups, -(-TASKS // split_k))
        tile = self._with_rows(tile, cache_block)
        in_place = self._in_place()
        whole_rows = self._has_whole_rows(tile.lanes)
        return RowsPlan(
            tile, in_place, cache_block, split_k, g_partitions, whole_rows, self._fetch() if in_place else 0
        )

    def _with_rows(self, tile: RowsTile, cache_block: tuple[int, ...]) -> RowsTile:
        """The tile with a number of rows that the cache block has whole."""
        return replace(tile, rows=largest_divisor(cache_block[-2], tile.rows))

    def _in_place(self) -> bool:
        """Whether data is read where it lies: it is f32, the machine loads vectors in parts, and a
        stride leaves out few elements."""
        in_place = self.problem.dtype == "f32" and self.machine.lanes >= MASKED_LANES
        return in_place and self.problem.geometry.strides[-1] <= MOST_APART

    def _fetch(self) -> int:
        """How many rows ahead data is fetched."""
        geometry = self.problem.geometry
        return -(-AHEAD // geometry.x[-1]) if geometry.rank > 1 else 0

    def _cache_block(self, tile: RowsTile) -> int:
        """How many vectors of positions are a cache block: an image or several small ones, so that groups follow each
        other as they lie in memory. What is read again for a group's other channels stays in L2."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        swept_by = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
        again = swept_by * tile.c + (o_group if c_group > tile.c else tile.o)
        vectors = (self.machine.l2 // 2) // (F32_BYTES * tile.lanes * again)
        image = prod(geometry.y[:-1]) * -(-geometry.y[-1] // tile.lanes)
        share = -(-geometry.batch * image // self._least_split_k)
        return max(min(vectors, share, max(image, LEAST_CHUNK)), 1)

    def _best_tiles(self) -> list[RowsTile]:
        """The cheapest tiles, cheapest first."""
        return sorted(self._tiles(), key=lambda tile: (self._cost(tile), tile))[:BEST_TILES]

    def _tiles(self) -> list[RowsTile]:
        """All tiles whose sums stay in registers, with two operands and one register to spare."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        *_, height = (1, *geometry.y[:-1])
        rows = [(rows, lanes) for lanes in self.machine.vectors for rows in divisors(height)]
        rows = [(rows, lanes) for rows, lanes in rows if rows <= self._most_rows(lanes)]
        taps = product(*map(divisors, geometry.k))
        sizes = product(taps, divisors(c_group), divisors(o_group), rows)
        tiles = [RowsTile(taps, c, o, rows, lanes) for taps, c, o, (rows, lanes) in sizes]
        return [tile for tile in tiles if tile.sums + 3 <= self.machine.registers]

    def _row(self, lanes: int) -> int:
        """How many vectors a row of positions takes."""
        return -(-self.problem.geometry.y[-1] // lanes)

    def _has_whole_rows(self, lanes: int) -> bool:
        """Whether tiles have whole rows: a stride needs more masks than stay in registers, unless they are constant."""
        return self._in_place() and self.problem.geometry.strides[-1] > 1 and self._row(lanes) <= WHOLE_ROWS // 2

    def _most_rows(self, lanes: int) -> int:
        """How many rows a tile may have."""
        if self._has_whole_rows(lanes):
            return min(WHOLE_ROWS // self._row(lanes), ROWS[0])
        return ROWS[self._row(lanes) > 2]

    def _cost(self, tile: RowsTile) -> float:
        """Cycles of one core, about: of the products, of copying, and of adding up lanes."""
        geometry = self.problem.geometry
        last = ceil_to(geometry.y[-1], tile.lanes)
        positions = geometry.batch * prod(geometry.y[:-1]) * last
        fmas = positions * prod(self.problem.filter_shape) / tile.lanes
        moving = (PACKING if self._in_place() else BORDERED) * (prod(self.problem.x_shape) + prod(self.problem.y_shape))
        return fmas / 2 / self._efficiency(tile) + moving + self._adding(tile, positions)

    def _adding(self, tile: RowsTile, positions: int) -> float:
        """Cycles of one core, about, to add each cache block's tiles to memory, and each split's lanes."""
        sums = prod(self.problem.filter_shape)
        cache_blocks = positions / (tile.lanes * self._cache_block(tile))
        near = F32_BYTES * tile.lanes * sums <= self.machine.l2 // 2
        lanes = ADDING_LANES * tile.lanes * min(self._least_split_k, math.ceil(cache_blocks))
        return sums * (cache_blocks * (ADDING_TILE if near else ADDING_FAR_TILE) + lanes)

    @property
    def _least_split_k(self) -> int:
        """How many splits there should be at least, so that there are enough work items."""
        return -(-TASKS // self.problem.geometry.groups)

    def _efficiency(self, tile: RowsTile) -> float:
        """The share of peak that a tile may reach: each row of x that it meets is loaded for every tap along the last
        axis, and each row of y once."""
        rows = self._rows_met(tile)
        apart = self.problem.geometry.strides[-1] if tile.taps[-1] > 1 else 1
        loads = rows * tile.c * tile.taps[-1] * prod(tile.taps[:-2]) * apart + tile.rows * tile.o
        fmas = tile.rows * tile.sums
        many = LOADING_MANY if self.machine.masked_stores else LOADING_MANY_UNMASKED
        loading = LOADING if self._is_depthwise else many
        return min(1.0, tile.sums / ENOUGH) * fmas / (fmas + loading * loads)

    def _rows_met(self, tile: RowsTile) -> int:
        """How many rows of x meet a tile's rows of y."""
        geometry = self.problem.geometry
        if geometry.rank == 1:
            return tile.rows
        stride, dilation = geometry.strides[-2], geometry.dilations[-2]
        return len({row * stride + tap * dilation for row in range(tile.rows) for tap in range(tile.taps[-2])})
