"""The numbers of the schedule of weights gradients with vectors over positions: from a cost model, or from a search."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tvmconvgrad.machines.cpu import BF16_BYTES, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import ADDING_LANES, BEST_TILES, BORDERED, PACKING, SHARED
from tvmconvgrad.schedules.cpu.micro_kernel import vector_widths
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, inner_extents, largest_divisor, nearest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.tensors import ceil_to, group_sizes
from tvmconvgrad.tir.passes.limits import MAX_STRIDE

WORK_ITEMS = 16
"""The least number of parallel work items that a kernel should have: enough for many cores, and few enough to stay
large. With half of it 6 sums change, and take 1.00 times as long; with twice, 5 and 1.01 (benchmarks/constants.py)."""

ROWS = (14, 8)
"""The most rows of positions in a tile: if a row has at most two vectors, and if it has more. More rows save little and
make a long program. With half of it 1 sum changes, and takes 1.16 times as long; with twice, 1 and 0.97
(benchmarks/constants.py)."""

WHOLE_ROWS = 16
"""The most vectors in a tile of whole rows. Half and twice change no sum (benchmarks/constants.py)."""

LOADING = 0.4
LOADING_MANY, LOADING_MANY_UNMASKED = 1.0, 2.0
"""What loading a vector costs, in FMAs: of depthwise layers; of other layers, where most vectors come from L2; and of
those on CPUs without mask registers. Most vectors cross a cache line. Sums that change with half and with twice, and
their times beside today's: LOADING 0 and 0; LOADING_MANY 1, 0.92 and 1, 0.94; for `x86-64-v3`, LOADING_MANY_UNMASKED
1, 1.16 and 1, 1.35 (benchmarks/constants.py)."""

AHEAD = 1024
"""Prefetch distance in elements, rounded up to whole rows. With half of it 2 sums change, and take 0.97 times as long;
with twice, 2 and 1.06 (benchmarks/constants.py)."""

ROW_AHEAD = 512
"""Where all positions are one row, the most elements of it in a cache block, and so the prefetch distance. With it
MobileNetV2's block1_project, block2_expand, block2_project and block3_expand take 0.61, 0.73, 0.83 and 0.73 of the time
that they took with long cache blocks and no prefetch (`tvmconvgrad bench mobilenet_v2 --only filters --data-format NCX
--ours-too NCX,checkout=FOLDER`). With half and twice of it block1_project takes 0.98 and 1.07 times as long (an AMD
EPYC with Zen 4)."""

ADDING_TILE, ADDING_FAR_TILE = 4.0, 12.0
"""Cycles to add a vector of sums to one in L2, or beyond it. Sums that change with half and with twice, and their times
beside today's: ADDING_TILE 0 and 0; ADDING_FAR_TILE 1, 0.93 and 0 (benchmarks/constants.py)."""

LEAST_CACHE_BLOCK = 128
"""A cache block has at least so many vectors of positions, since each cache block adds its tiles to memory. With half
of it 1 sum changes, and takes 0.97 times as long; twice changes no sum (benchmarks/constants.py)."""


@dataclass(frozen=True, order=True)
class RowsTile:
    """The register tile: for `taps` and `c` x `o` channels of a group one vector of sums each; a step reads vectors of
    `lanes` positions in `rows` rows."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    rows: int
    lanes: int
    """Positions of a vector: with dot-product pairs, twice as many as it has sums."""

    @property
    def sums(self) -> int:
        """The number of vectors of sums in the tile."""
        return prod(self.taps) * self.c * self.o


@dataclass(frozen=True)
class RowsPlan:
    """All numbers of the schedule."""

    tile: RowsTile
    pairs: bool
    """Whether operands are bf16 dot-product pairs of neighbouring positions."""
    in_place: bool
    """Whether data is read in place; otherwise it is packed with its padding."""
    cache_block: tuple[int, ...]
    """Images and positions of a cache block; along the last axis, vectors."""
    split_k: int
    g_partitions: int
    whole_rows: bool
    """Whether a tile has whole rows, so that the masks of its vectors are constants."""
    prefetch: int
    """Prefetch distance of data that is read in place: in rows, or in positions if all are one row; 0: none."""


@dataclass(frozen=True)
class RowsPlanner:
    """Plans a weights gradient, with vectors over positions, for a machine."""

    machine: CpuMachine
    problem: Problem

    def is_applicable(self) -> bool:
        """Whether the rule takes this problem: NCX, depthwise or without groups. Without groups only with stride 1
        along the last axis, since every pair of channels would pick the strided elements again; and only with a single
        tap on CPUs without mask registers, since each pair of channels would need masks of its own."""
        geometry = self.problem.geometry
        ncx = self.problem.data_format == "NCX"
        whole = geometry.strides[-1] == 1 and (self.machine.masked_stores or prod(geometry.k) == 1)
        return ncx and (self._has_single_channels or (geometry.groups == 1 and whole))

    @property
    def _has_single_channels(self) -> bool:
        """Whether this is a depthwise layer, or has a single channel altogether."""
        return self.problem.geometry.groups == self.problem.geometry.c == self.problem.geometry.o

    def least_cost(self) -> float:
        """The cost of the best tile, in cycles of one core."""
        return min(self._cost(tile) for tile in self._tiles())

    def plan(self, decisions: Decisions) -> RowsPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        tiles = self._best_tiles()
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        geometry = self.problem.geometry
        *outer, last = geometry.y
        extents = (geometry.batch, *outer, -(-last // tile.lanes))
        limits = [8 << power for power in range(8)]
        cache_block = tuple(inner_extents(extents, decisions.draw("cache_block", limits, self._cache_block(tile))))
        cache_blocks = prod(extents) // prod(cache_block)
        split_k = decisions.draw_divisor("split_k", cache_blocks, self._least_split_k)
        g_partitions = decisions.draw_divisor("g_partitions", geometry.groups, -(-WORK_ITEMS // split_k))
        tile = self._with_rows(tile, cache_block)
        in_place = self._in_place()
        prefetch = self._prefetch(cache_block[-1] * tile.lanes) if in_place else 0
        whole_rows = self._has_whole_rows(tile.lanes)
        return RowsPlan(tile, self.pairs, in_place, cache_block, split_k, g_partitions, whole_rows, prefetch)

    def _with_rows(self, tile: RowsTile, cache_block: tuple[int, ...]) -> RowsTile:
        """The tile with a number of rows that divides the cache block's."""
        return replace(tile, rows=largest_divisor(cache_block[-2], tile.rows))

    @property
    def pairs(self) -> bool:
        """Whether an instruction adds up the products of two neighbouring positions."""
        return self.problem.dtype == "bf16" and self.machine.takes_pairs()

    @property
    def _run(self) -> int:
        """The positions of a lane."""
        return 2 if self.pairs else 1

    def _in_place(self) -> bool:
        """Whether data is read in place: the CPU has masked loads for its type, and the stride is at most
        `MAX_STRIDE`."""
        in_place = self.machine.loads_masked(self.problem.dtype)
        return in_place and self.problem.geometry.strides[-1] <= MAX_STRIDE

    def _prefetch(self, cache_block: int) -> int:
        """The prefetch distance in rows; in positions, those of a cache block along its only row, where that is all."""
        geometry = self.problem.geometry
        if geometry.rank > 1:
            return -(-AHEAD // geometry.x[-1])
        return cache_block if self._reads_ahead else 0

    @property
    def _reads_ahead(self) -> bool:
        """Whether the next cache block is prefetched, of all channels, while one is added up: where the tensors come
        from memory. U-Net's classes, which caches hold, took 1.12 times as long with it."""
        far, geometry = self.problem.tensor_bytes > SHARED * self.machine.l3, self.problem.geometry
        return far and geometry.rank == prod(geometry.k) == 1 and not self._has_single_channels and self._in_place()

    def _cache_block(self, tile: RowsTile) -> int:
        """The number of vectors of positions in a cache block: about one image, or several small ones, so that groups
        follow each other in memory. What is read again for a group's other channels stays in L2, and so does the next
        cache block if it is prefetched."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        packed = BF16_BYTES if self.pairs else F32_BYTES
        vector = (ITEM_BYTES[self.problem.dtype] if self._in_place() else packed) * tile.lanes
        image = prod(geometry.y[:-1]) * -(-geometry.y[-1] // tile.lanes)
        share = -(-geometry.batch * image // self._least_split_k)
        if self._reads_ahead:
            vectors = self.machine.l2_blocks // 2 // (vector * (c_group + o_group))
            wanted = max(min(vectors, share, ROW_AHEAD // tile.lanes), 1)
            return nearest_divisor(image, wanted) if wanted < image else wanted
        read_by = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
        again = read_by * tile.c + (o_group if c_group > tile.c else tile.o)
        vectors = self.machine.l2_blocks // 2 // (vector * again)
        return max(min(vectors, share, max(image, LEAST_CACHE_BLOCK)), 1)

    def _best_tiles(self) -> list[RowsTile]:
        """The cheapest tiles, cheapest first."""
        return sorted(self._tiles(), key=lambda tile: (self._cost(tile), tile))[:BEST_TILES]

    def _tiles(self) -> list[RowsTile]:
        """All tiles whose sums stay in registers, beside two operands and one spare register."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        *_, height = (1, *geometry.y[:-1])
        widths = [self._run * width for width in vector_widths(self.machine)]
        rows = [(rows, lanes) for lanes in widths for rows in divisors(height)]
        rows = [(rows, lanes) for rows, lanes in rows if rows <= self._most_rows(lanes)]
        taps = product(*map(divisors, geometry.k))
        sizes = product(taps, divisors(c_group), divisors(o_group), rows)
        tiles = [RowsTile(taps, c, o, rows, lanes) for taps, c, o, (rows, lanes) in sizes]
        return [tile for tile in tiles if tile.sums + 3 <= self.machine.registers]

    def _row(self, lanes: int) -> int:
        """The number of vectors in a row of positions."""
        return -(-self.problem.geometry.y[-1] // lanes)

    def _has_whole_rows(self, lanes: int) -> bool:
        """Whether tiles have whole rows: with a stride there are more masks than registers, unless they are
        constants."""
        return self._in_place() and self.problem.geometry.strides[-1] > 1 and self._row(lanes) <= WHOLE_ROWS // 2

    def _most_rows(self, lanes: int) -> int:
        """The most rows that a tile may have."""
        if self._has_whole_rows(lanes):
            return min(WHOLE_ROWS // self._row(lanes), ROWS[0])
        return ROWS[self._row(lanes) > 2]

    def _cost(self, tile: RowsTile) -> float:
        """Cycles of one core, about: for the products, for packing, and for adding up lanes."""
        geometry = self.problem.geometry
        last = ceil_to(geometry.y[-1], tile.lanes)
        positions = geometry.batch * prod(geometry.y[:-1]) * last
        fmas = positions * prod(self.problem.filter_shape) / tile.lanes
        moving = (PACKING if self._in_place() else BORDERED) * (prod(self.problem.x_shape) + prod(self.problem.y_shape))
        at_a_time = self.machine.fmas * (self.machine.dots_per_fma if self.pairs else 1)
        return fmas / at_a_time / self._efficiency(tile) + moving + self._adding(tile, positions)

    def _adding(self, tile: RowsTile, positions: int) -> float:
        """Cycles of one core, about, to add each cache block's tiles to memory, and to add up each split's lanes."""
        sums = prod(self.problem.filter_shape)
        cache_blocks = positions / (tile.lanes * self._cache_block(tile))
        near = F32_BYTES * tile.lanes // self._run * sums <= self.machine.l2_blocks // 2
        lanes = ADDING_LANES * (tile.lanes // self._run) * min(self._least_split_k, math.ceil(cache_blocks))
        return sums * (cache_blocks * (ADDING_TILE if near else ADDING_FAR_TILE) + lanes)

    @property
    def _least_split_k(self) -> int:
        """The least number of splits of K that gives enough work items."""
        return -(-WORK_ITEMS // self.problem.geometry.groups)

    def _efficiency(self, tile: RowsTile) -> float:
        """The share of peak FLOPs that a tile may reach. Each row of x that it reads is loaded for every tap along the
        last axis, and each row of dy once."""
        rows = self._rows_read(tile)
        stride = self.problem.geometry.strides[-1] if tile.taps[-1] > 1 else 1
        loads = rows * tile.c * tile.taps[-1] * prod(tile.taps[:-2]) * stride + tile.rows * tile.o
        fmas = tile.rows * tile.sums
        many = LOADING_MANY if self.machine.masked_stores else LOADING_MANY_UNMASKED
        loading = LOADING if self._has_single_channels else many
        return min(1.0, tile.sums / self.machine.fmas_in_flight) * fmas / (fmas + loading * loads)

    def _rows_read(self, tile: RowsTile) -> int:
        """The number of rows of x that a tile reads."""
        geometry = self.problem.geometry
        if geometry.rank == 1:
            return tile.rows
        stride, dilation = geometry.strides[-2], geometry.dilations[-2]
        return len({row * stride + tap * dilation for row in range(tile.rows) for tap in range(tile.taps[-2])})
