"""The numbers of weights gradients by Winograd's algorithm: from a cost model, or from a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from tvmconvgrad.machines.cpu import F32_BYTES
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, SHARED, STARTING
from tvmconvgrad.schedules.cpu.packing import BLOCK_K
from tvmconvgrad.schedules.cpu.weights.tiles import FINISHING
from tvmconvgrad.schedules.cpu.winograd.planner import WeightsSizePlanner
from tvmconvgrad.schedules.cpu.winograd.sizes import LEAST_WORK_ITEMS, MOST_VECTORS, WinogradSizes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, nearest_divisor, nearest_run
from tvmconvgrad.te.tensors import ceil_to

CACHE_BLOCKS = (56, 112, 224)
"""The least number of tiles in a cache block if the sums fit L2, if they fit the last-level cache, and if they don't.
With half of them 4 sums change, and take 1.01 times as long; with twice 4 sums, 0.99 times: from 0.93 to 1.07
(benchmarks/constants.py)."""

LEAST_SPLITS = 8
"""With room for fewer splits of K there is no split-K: the work items are a cache block's products. With half of it 1
sum changes, and takes 1.06 times as long; with twice 1 sum, 0.94 times (benchmarks/constants.py)."""

LEAST_CACHE_BLOCK = 14
"""There is no room if a cache block would have fewer tiles. Half changes no sum; with twice 1 sum changes, and takes
0.95 times as long (benchmarks/constants.py)."""

SURPLUS = 1.08
"""Tiles may be rounded up to at most this many times their number, to make split-K possible. With 1.0 1 sum changes,
and takes 0.93 times as long; 1.17 changes no sum (benchmarks/constants.py)."""


@dataclass(frozen=True)
class WinogradWeightsPlan:
    """All numbers of the schedule."""

    products: tuple[int, ...]
    """Products of a tile along each tiled axis."""
    c: int
    o: int
    """Channels of x (M), and of dy (N), of a register tile."""
    c_block: int
    """Channels of x that are stored together: those of one or several tiles."""
    multiples: tuple[int, ...]
    """The tiles along each axis are rounded up to multiples of these."""
    cache_block: tuple[int, ...]
    """Images, and tiles or positions along each axis, of a cache block."""
    split_k: int
    """The number of splits of K; 1: the work items are a cache block's products."""


@dataclass(frozen=True, order=True)
class WinogradWeightsTile:
    """A register tile, which is chosen first: channels of x and of dy."""

    c: int
    o: int

    @property
    def c_block(self) -> int:
        """Channels of x that are stored together: about a cache line."""
        return self.c * max(1, BLOCK_K // self.c)


@dataclass(frozen=True)
class WinogradWeightsPlanner(WeightsSizePlanner):
    """Plans a problem for a machine, with tiles of one size."""

    @property
    def copies_result(self) -> bool:
        """Whether the result is transformed back into scratch memory and copied: its innermost axis is not O, or
        vectors would reach beyond its channels."""
        return not self.problem.filter_axes.endswith("O") or self.problem.geometry.o % self.machine.lanes > 0

    def tiles(self) -> Iterator[WinogradWeightsTile]:
        """All register tiles that stay in registers."""
        for c in range(1, min(self.problem.geometry.c, self.machine.registers) + 1):
            for vectors in range(1, MOST_VECTORS + 1):
                if self.sizes.efficiency(c, vectors * self.machine.lanes) > 0:
                    yield WinogradWeightsTile(c, vectors * self.machine.lanes)

    def channels(self, tile: WinogradWeightsTile) -> tuple[int, int]:
        """Channels of x and of dy, rounded up to the tile."""
        return ceil_to(self.problem.geometry.c, tile.c_block), ceil_to(self.problem.geometry.o, tile.o)

    def cost(self, tile: WinogradWeightsTile) -> float:
        """Cycles of one core, about: for the products, for adding them up, and for transforming data and result.
        Infinite if the workspace would be larger than the tensors."""
        sizes, (c, o), cache_block = self.sizes, self.channels(tile), self._cache_block_tiles(tile)
        if cache_block < LEAST_CACHE_BLOCK:
            return inf
        near = sizes.is_near(sizes.products * cache_block * (c + o))
        cycles = sizes.summing(tile.c, tile.o, c * o, sizes.is_near(cache_block * (c + o)))
        cycles += sizes.adding(self._sums(tile), sizes.tiles / cache_block, sizes.is_near(self._sums(tile)))
        cycles += sizes.moving(c + o) + sizes.transforming(c + o, near)
        cycles += sizes.transforming_filter(c * o) + STARTING * LEAST_WORK_ITEMS
        return cycles + (FINISHING * prod(self.problem.filter_shape) if self.copies_result else 0.0)

    def least_cost(self) -> float:
        """The cost of the best tile, in cycles of one core."""
        return self.cost(_best_tiles(self)[0])

    def plan(self, decisions: Decisions) -> WinogradWeightsPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        best = _best_tiles(self)
        tile = best[decisions.draw("tile", range(len(best)), 0)]
        limits = [14 << power for power in range(6)]
        tiles = decisions.draw("cache_block", limits, max(self._cache_block_tiles(tile), LEAST_CACHE_BLOCK))
        runs = self._runs(tiles)
        wanted = self._split_k(tile)
        sizes = self._rounded(runs, wanted)
        cache_block = self._cache_block(sizes, runs, tiles)
        cache_blocks = sizes.tiles // prod(cache_block)
        split_k = decisions.draw("split_k", divisors(cache_blocks), nearest_divisor(cache_blocks, wanted, wanted))
        return WinogradWeightsPlan(self.products, tile.c, tile.o, tile.c_block, sizes.multiples, cache_block, split_k)

    def _runs(self, wanted: int) -> list[int]:
        """How many tiles along each axis a cache block takes as one run, about `wanted` in all. If some axis is summed
        directly, only the last axis has runs: neighbours along the direct axis share data, so a cache block should be
        long there instead."""
        axes, left = self.sizes.axes, wanted // self.sizes.interleaved
        shares = any(axis.taps > 1 and not axis.tiled for axis in axes)
        runs = [1] * len(axes)
        for place in reversed(range(len(axes))):
            if axes[place].tiled and not (shares and place < len(axes) - 1):
                runs[place] = nearest_run(axes[place].runs, max(left, 1))
                left //= runs[place]
        return runs

    def _rounded(self, runs: Sequence[int], split_k: int) -> WinogradSizes:
        """The problem rounded up to whole runs along each axis. Along one axis it is rounded up to several runs, if
        that adds few tiles and cache blocks could not be split as often as wanted otherwise."""
        place = max((at for at, axis in enumerate(self.sizes.axes[:-1]) if axis.tiled), default=len(runs) - 1)
        for times in (1, 2, 4, 8):
            multiples = tuple(run * times if at == place else run for at, run in enumerate(runs))
            sizes = WinogradSizes(self.machine, self.problem, self.products, multiples)
            cache_blocks = sizes.tiles // (prod(runs) * sizes.interleaved)
            if times == 1 or sizes.tiles <= SURPLUS * self.sizes.tiles:
                found = sizes
            if 2 * nearest_divisor(cache_blocks, split_k, split_k) > split_k:
                break
        return found

    def _cache_block(self, sizes: WinogradSizes, runs: Sequence[int], wanted: int) -> tuple[int, ...]:
        """Images, and tiles or positions along each axis, of a cache block of about `wanted` tiles."""
        images, *found = sizes.part(self.problem.geometry.batch, [1, *runs], wanted)
        return (images, *(size * axis.interleaved for size, axis in zip(found, sizes.axes)))

    def _sums(self, tile: WinogradWeightsTile) -> int:
        """Elements of one split's partial sums."""
        return self.sizes.products * self.sizes.taps * prod(self.channels(tile))

    def _split_k(self, tile: WinogradWeightsTile) -> int:
        """The number of splits whose partial sums have room beside a cache block, at most the number of work items that
        there should be; 1 if there is room for too few."""
        room = self.sizes.room - self._cache_block_tiles(tile) * self._elements(tile)
        wanted = min(room // self._sums(tile) - 1, LEAST_WORK_ITEMS)  # with several splits their sum is kept, too
        return wanted if wanted >= LEAST_SPLITS else 1

    def _cache_block_tiles(self, tile: WinogradWeightsTile) -> int:
        """How many tiles a cache block should have: so many that their data fits L2; more, if the sums do not fit L2
        (`CACHE_BLOCKS`); but not more than have room beside the sums."""
        fitting = self.machine.l2_blocks // (F32_BYTES * self.sizes.products * sum(self.channels(tile)))
        beyond = sum(F32_BYTES * self._sums(tile) > size for size in (self.machine.l2_blocks, SHARED * self.machine.l3))
        return min(max(fitting, CACHE_BLOCKS[beyond]), (self.sizes.room - self._sums(tile)) // self._elements(tile))

    def _elements(self, tile: WinogradWeightsTile) -> int:
        """Elements of a tile's data, padded and transformed, about."""
        padded = prod(axis.products if axis.tiled else 1 for axis in self.sizes.axes)
        return (self.sizes.products + padded) * sum(self.channels(tile))


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WinogradWeightsPlanner) -> list[WinogradWeightsTile]:
    """The cheapest register tiles, cheapest first."""
    return sorted(planner.tiles(), key=lambda tile: (planner.cost(tile), tile))[:BEST_TILES]
