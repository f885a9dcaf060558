"""The numbers of filter gradients by Winograd's algorithm, from a model of the machine, or drawn by a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from tvmconvgrad.machines.cpu import F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, SHARED, STARTING
from tvmconvgrad.schedules.cpu.weights.tiles import FINISHING
from tvmconvgrad.schedules.cpu.winograd.sizes import LEAST_TASKS, MOST_VECTORS, SUMMED, WinogradSizes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, nearest_divisor, nearest_run
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.te.winograd import tiled_axes

CHUNKS = (56, 112, 224)
"""Tiles of a cache block, at least, whose sums stay in the L2 cache, in the last-level cache, or in memory."""

LEAST_SPLITS = 8
"""Where sums may not be kept so many times, the products of a cache block are the work items."""

SUMS = 2
"""How many times the tensors' memory, in f32, the sums of all splits may take."""

SURPLUS = 1.08
"""How many times more tiles there may be, so that there are splits."""


@dataclass(frozen=True)
class WinogradWeightsPlan:
    """All numbers of the schedule."""

    c: int
    o: int
    """Channels of x, and of y, of a register tile."""
    c_block: int
    """Channels of x that are stored together: some tiles'."""
    multiples: tuple[int, ...]
    """Of what numbers the tiles along each axis are multiples."""
    cache_block: tuple[int, ...]
    """Images, and tiles or positions along each axis, of a cache block."""
    split_k: int
    """How many there are of the cache blocks; 1: work items are a cache block's products."""


@dataclass(frozen=True, order=True)
class WinogradWeightsTile:
    """A register tile: what is chosen first."""

    c: int
    o: int

    @property
    def c_block(self) -> int:
        """Channels of x that are stored together: about a cache line."""
        return self.c * max(1, SUMMED // self.c)


@dataclass(frozen=True)
class WinogradWeightsPlanner:
    """Plans a problem for a machine."""

    machine: CpuMachine
    problem: Problem

    def takes(self) -> bool:
        """Whether there is a filter gradient with three taps along an axis."""
        return self.problem.gradient is Gradient.FILTER and any(tiled_axes(self.problem))

    @cached_property
    def sizes(self) -> WinogradSizes:
        """The problem by tiles."""
        return WinogradSizes(self.machine, self.problem, (1,) * self.problem.geometry.rank)

    @property
    def copies_result(self) -> bool:
        """Whether the result is transformed back aside: it lies otherwise, or vectors would go beyond its channels."""
        return not self.problem.filter_axes.endswith("O") or self.problem.geometry.o % self.machine.lanes > 0

    def tiles(self) -> Iterator[WinogradWeightsTile]:
        """All register tiles that stay in registers."""
        for c in range(1, min(self.problem.geometry.c, self.machine.registers) + 1):
            for vectors in range(1, MOST_VECTORS + 1):
                if self.sizes.efficiency(c, vectors * self.machine.lanes) > 0:
                    yield WinogradWeightsTile(c, vectors * self.machine.lanes)

    def channels(self, tile: WinogradWeightsTile) -> tuple[int, int]:
        """Channels of x and of y, rounded up."""
        return ceil_to(self.problem.geometry.c, tile.c_block), ceil_to(self.problem.geometry.o, tile.o)

    def cost(self, tile: WinogradWeightsTile) -> float:
        """Cycles of one core, about: of the products, of adding them up, and of transforming data and result."""
        sizes, (c, o), cache_block = self.sizes, self.channels(tile), self._cache_block_tiles(tile)
        near = sizes.is_near(sizes.products * cache_block * (c + o))
        cycles = sizes.summing(tile.c, tile.o, c * o, sizes.is_near(cache_block * (c + o)))
        cycles += sizes.adding(self._sums(tile), sizes.tiles / cache_block)
        cycles += sizes.moving(c + o) + sizes.transforming(c + o, near)
        cycles += sizes.transforming_filter(c * o) + STARTING * LEAST_TASKS
        return cycles + (FINISHING * prod(self.problem.filter_shape) if self.copies_result else 0.0)

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return self.cost(_best_tiles(self)[0])

    def plan(self, decisions: Decisions) -> WinogradWeightsPlan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        tile = best[decisions.draw("tile", range(len(best)), 0)]
        limits = [14 << power for power in range(6)]
        tiles = decisions.draw("cache_block", limits, self._cache_block_tiles(tile))
        runs = self._runs(tiles)
        wanted = self._split_k(tile) if self._split_k(tile) >= LEAST_SPLITS else 1
        sizes = self._rounded(runs, wanted)
        cache_block = self._cache_block(sizes, runs, tiles)
        cache_blocks = sizes.tiles // prod(cache_block)
        split_k = decisions.draw("split_k", divisors(cache_blocks), nearest_divisor(cache_blocks, wanted, wanted))
        return WinogradWeightsPlan(tile.c, tile.o, tile.c_block, sizes.multiples, cache_block, split_k)

    def _runs(self, wanted: int) -> list[int]:
        """How many tiles along each axis belong together, about `wanted` of them; first along axes that are summed
        directly, since neighbours there share data, but for the last one."""
        axes, left = self.sizes.axes, wanted // self.sizes.interleaved
        shares = any(axis.taps > 1 and not axis.tiled for axis in axes)
        runs = [1] * len(axes)
        for place in reversed(range(len(axes))):
            if axes[place].tiled and not (shares and place < len(axes) - 1):
                runs[place] = nearest_run(axes[place].runs, max(left, 1))
                left //= runs[place]
        return runs

    def _rounded(self, runs: Sequence[int], split_k: int) -> WinogradSizes:
        """The problem rounded up to whole runs along each axis; along one of them to several, where that is little and
        cache blocks could not be split as often as wanted."""
        place = max((at for at, axis in enumerate(self.sizes.axes[:-1]) if axis.tiled), default=len(runs) - 1)
        for times in (1, 2, 4, 8):
            multiples = tuple(run * times if at == place else run for at, run in enumerate(runs))
            sizes = WinogradSizes(self.machine, self.problem, multiples)
            cache_blocks = sizes.tiles // (prod(runs) * sizes.interleaved)
            if times == 1 or sizes.tiles <= SURPLUS * self.sizes.tiles:
                found = sizes
            if 2 * nearest_divisor(cache_blocks, split_k, split_k) > split_k:
                break
        return found

    def _cache_block(self, sizes: WinogradSizes, runs: Sequence[int], wanted: int) -> tuple[int, ...]:
        """Images, and along each axis tiles, of a cache block."""
        images, *found = sizes.part(self.problem.geometry.batch, [1, *runs], wanted)
        return (images, *(size * axis.interleaved for size, axis in zip(found, sizes.axes)))

    def _sums(self, tile: WinogradWeightsTile) -> int:
        """Elements of a split's sums."""
        return self.sizes.products * self.sizes.taps * prod(self.channels(tile))

    def _split_k(self, tile: WinogradWeightsTile) -> int:
        """How many splits' sums there is memory for, no more than there should be work items."""
        return min(SUMS * self.sizes.elements // self._sums(tile), LEAST_TASKS)

    def _cache_block_tiles(self, tile: WinogradWeightsTile) -> int:
        """How many tiles a cache block should have: those whose data stays in the L2 cache, and, where sums do not,
        more."""
        room = self.machine.l2 // (F32_BYTES * self.sizes.products * sum(self.channels(tile)))
        beyond = sum(F32_BYTES * self._sums(tile) > size for size in (self.machine.l2, SHARED * self.machine.l3))
        return max(room, CHUNKS[beyond])


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WinogradWeightsPlanner) -> list[WinogradWeightsTile]:
    """The cheapest register tiles, cheapest first."""
    return sorted(planner.tiles(), key=lambda tile: (planner.cost(tile), tile))[:BEST_TILES]
