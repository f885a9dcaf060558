"""The numbers of weights gradients by Winograd's algorithm and partitions of channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from tvmconvgrad.machines.cpu import F32_BYTES
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, STARTING
from tvmconvgrad.schedules.cpu.packing import BLOCK_K
from tvmconvgrad.schedules.cpu.weights.tiles import FINISHING
from tvmconvgrad.schedules.cpu.winograd.planner import WeightsSizePlanner
from tvmconvgrad.schedules.cpu.winograd.sizes import MOST_VECTORS
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.te.tensors import ceil_to

CACHE_BLOCK = 112
"""At most so many tiles are summed in registers before they are added to the sums in the cache. With 1568 in one run
the error of ResNet-50's res2a_branch2b, then by tiles of 36 products, was 18.7 times that of direct sums, instead of
5.5 times."""

RANGES = (64, 32, 16)
"""Channels of x of a work item. With 64 ResNet-50's res5a_branch2b took 0.85 of the time that it took with 32, and 0.76
of that with 16 (an Intel Xeon with AMX)."""

TILE_C = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
"""Channels of x of a register tile: those for which some tile stays in registers, the larger ones in steps of two."""

PARTITIONS = (1, 2, 4, 8)
"""Numbers of partitions of the channels of dy."""

DATA_FAR = 0.1
"""Cycles for a byte of transformed dy, all of which each work item reads. It makes up for what the model's times of
VGG-19's conv3_1 and ResNet-50's res4a_branch2b lack (an Intel Xeon with AMX)."""

FEW_RANGES, FEW = 8, 1.1
"""With fewer work items the cost counts so many times. Sums that change with half and with twice, and their times
beside today's: FEW_RANGES 3, 1.11 and 2, 0.89; FEW 8, 1.35 and 0 (benchmarks/constants.py)."""


@dataclass(frozen=True)
class WinogradChannelsPlan:
    """All numbers of the schedule."""

    products: tuple[int, ...]
    """Products of a tile along each tiled axis."""
    c: int
    o: int
    """Channels of x (M), and of dy (N), of a register tile."""
    c_block: int
    """Channels of x that are stored together: those of one or several tiles."""
    c_range: int
    """Channels of x of a work item."""
    o_partitions: int
    cache_block: tuple[int, ...]
    """Images, and tiles or positions along each axis, that are summed in registers."""
    copies_result: int
    """Whether the result is transformed back into scratch memory and copied."""


@dataclass(frozen=True, order=True)
class WinogradChannelsTile:
    """What is chosen first: a register tile, the channels of x of a work item, and the partitions."""

    c: int
    o: int
    c_range: int
    o_partitions: int

    @property
    def c_block(self) -> int:
        """Channels of x that are stored together: about a cache line, and a divisor of the partition."""
        fitting = [self.c * count for count in (1, 2, 4) if self.c * count <= max(BLOCK_K, self.c)]
        return max(channels for channels in fitting if self.c_range % channels == 0)


@dataclass(frozen=True)
class WinogradChannelsPlanner(WeightsSizePlanner):
    """Plans a problem for a machine, with tiles of one size."""

    def tiles(self) -> Iterator[WinogradChannelsTile]:
        """All choices whose register tile stays in registers."""
        for c in TILE_C:
            for vectors in range(1, MOST_VECTORS + 1):
                o = vectors * self.machine.lanes
                if self.sizes.efficiency(c, o) > 0:
                    for c_range in {max(size // c, 1) * c for size in RANGES}:
                        for parts in PARTITIONS:
                            yield WinogradChannelsTile(c, o, c_range, parts)

    def channels(self, tile: WinogradChannelsTile) -> tuple[int, int]:
        """Channels of x and of dy, rounded up to partitions."""
        geometry = self.problem.geometry
        return ceil_to(geometry.c, tile.c_range), ceil_to(geometry.o, tile.o * tile.o_partitions)

    def copies_result(self, tile: WinogradChannelsTile) -> bool:
        """Whether the result is copied from scratch memory: its innermost axis is not O, or channels are rounded up."""
        geometry = self.problem.geometry
        return not self.problem.filter_axes.endswith("O") or self.channels(tile) != (geometry.c, geometry.o)

    def workspace(self, tile: WinogradChannelsTile) -> int:
        """Elements of a call's workspace on one thread: transformed operands, sums, and a result that is copied."""
        c, o = self.channels(tile)
        untiled = prod(self.problem.geometry.k) * c * o if self.copies_result(tile) else 0
        return self._transformed_y(o) // tile.o_partitions + self._work_item(tile) + untiled

    def _transformed_y(self, o: int) -> int:
        return self.sizes.products * self.sizes.tiles * o

    def _work_item(self, tile: WinogradChannelsTile) -> int:
        """Elements of a work item's data, padded and transformed, and of its sums."""
        sizes, batch = self.sizes, self.problem.geometry.batch
        tiles = batch * prod(axis.tiles if axis.tiled else axis.extent for axis in sizes.axes)
        padded = prod(axis.extent for axis in sizes.axes)
        return tile.c_range * (sizes.products * tiles + padded + sizes.products * sizes.taps * tile.o)

    def cost(self, tile: WinogradChannelsTile) -> float:
        """Cycles of one core, about; infinite if the workspace would be larger than the tensors."""
        sizes, (c, o) = self.sizes, self.channels(tile)
        if self.workspace(tile) > sizes.room:
            return inf
        ranges, near = c // tile.c_range, sizes.is_near(self._work_item(tile))
        cycles = sizes.summing(tile.c, tile.o, c * o, near)
        cycles += sizes.adding(sizes.products * sizes.taps * c * o, -(-sizes.tiles // CACHE_BLOCK), near)
        cycles += sizes.moving(c * tile.o_partitions + o)
        cycles += sizes.transforming(c * tile.o_partitions, near) + sizes.transforming(
            o, sizes.is_near(self._transformed_y(o))
        )
        cycles += sizes.transforming_filter(c * o, stays=True) + STARTING * ranges * tile.o_partitions
        cycles += DATA_FAR * F32_BYTES * ranges * self._transformed_y(o)
        cycles += FINISHING * prod(self.problem.filter_shape) if self.copies_result(tile) else 0.0
        return cycles * (FEW if ranges < FEW_RANGES else 1.0)

    def least_cost(self) -> float:
        """The cost of the best choice, in cycles of one core."""
        return self.cost(_best_tiles(self)[0])

    def plan(self, decisions: Decisions) -> WinogradChannelsPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        best = _best_tiles(self)
        tile = best[decisions.draw("tile", range(len(best)), 0)]
        wanted = decisions.draw("cache_block", [14 << power for power in range(6)], CACHE_BLOCK)
        axes = self.sizes.axes
        extents = [self.problem.geometry.batch, *(axis.tiles for axis in axes)]
        return WinogradChannelsPlan(
            self.products,
            tile.c,
            tile.o,
            tile.c_block,
            tile.c_range,
            tile.o_partitions,
            tuple(inner_extents(extents, wanted)),
            int(self.copies_result(tile)),
        )


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WinogradChannelsPlanner) -> list[WinogradChannelsTile]:
    """The cheapest choices, cheapest first."""
    return sorted(planner.tiles(), key=lambda tile: (planner.cost(tile), planner.workspace(tile), tile))[:BEST_TILES]
