"""The numbers of the schedule of weights gradients: from a cost model, or from a search.

The register tile is chosen first. Everything else follows from it: what is read in place, how many positions a cache
block has, how cache blocks and channels are split into work items, and so where operands are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.cpu.weights import tile_registers
from tvmconvgrad.schedules.cpu.weights.access import LEAST_CACHE_BLOCK, WeightsAccess, WeightsAxis, WeightsTile
from tvmconvgrad.schedules.cpu.weights.partition import WORK_ITEMS, WeightsPartitioning, cache_block_size
from tvmconvgrad.schedules.cpu.weights.summation import summation_blocks
from tvmconvgrad.schedules.cpu.weights.tiles import cost, packing_again, products, tiles
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, inner_extents
from tvmconvgrad.spec import Problem

FEW_WORK_ITEMS = 1.05
"""The cost of a tile counts so many times if it leaves at most half of the work items that there should be. With half
of it 17 sums change, and take 1.03 times as long; with twice, 1 and 1.11 (benchmarks/constants.py)."""

NO_ROOM = 1.1
"""The cost of a tile counts so many times if its workspace is larger than the tensors. With half of it 2 sums change,
and take 1.27 times as long; twice changes no sum (benchmarks/constants.py)."""

LONGEST, SMALL_TENSORS = 4, 1 << 19
"""A cache block with few positions may be longer than the caches want by this factor. With twice no sum of the suites
and of other_networks.json changes; with half ten do, in f32 and bf16, of which eight keep single rows of 17 positions,
which took 1.02 to 2.17 times as long (an Intel Xeon with AMX). If the tensors have fewer bytes than the second number,
it stays: a longer one could pack more than the tensors have, or leave fewer work items."""


@dataclass(frozen=True)
class WeightsPlan:
    """All numbers of the schedule."""

    tile: WeightsTile
    c_block: int
    o_block: int
    """How many channels c, and o, are packed together; 0: the operand is read in place."""
    packs: tuple[Packs, Packs]
    """Where x, and y, are packed if they are."""
    cache_block: tuple[int, ...]
    """Images, and positions along each axis, of a cache block."""
    prefetch: int
    """Prefetch distance, in positions, about: with several axes, in whole rows. 0: only what is packed, or read in
    place in NCX, is prefetched while the cache block before is summed."""
    summation_blocks: int | None
    """The number of blocks in which the products of a cache block are added up (summation.py); None: in one chain."""
    split_k: int
    """The number of splits of K."""
    g_partitions: int
    o_partitions: int
    c_partitions: int

    @property
    def partitions(self) -> tuple[int, int, int]:
        """The numbers of partitions of groups, of channels o and of channels c."""
        return self.g_partitions, self.o_partitions, self.c_partitions

    @property
    def summation_axis(self) -> int:
        """The axis of a cache block along which its summation blocks are parts."""
        return next(axis for axis, size in enumerate(self.cache_block) if size % (self.summation_blocks or 1) == 0)

    @property
    def prefetches_blocks(self) -> bool:
        """Whether a step also prefetches what the next tiles read of x, because it was packed before all work items and
        is in memory by now. Not with vectors over c, where the next tiles along o read the same, nor where x is packed
        channel by channel."""
        packed = self.c_block >= self.tile.c and self.packs[0] is Packs.BEFORE
        return packed and self.tile.vector_axis is WeightsAxis.O and not self.tile.tile_rows


@dataclass(frozen=True)
class WeightsPlanner:
    """Plans a weights gradient, with vectors over `vector_axis`, for a machine."""

    machine: CpuMachine
    vector_axis: WeightsAxis
    problem: Problem
    in_tile_registers: bool = False

    def is_applicable(self) -> bool:
        """Whether vectors may lie along `vector_axis`, and sums in tile registers."""
        if self.in_tile_registers:
            taps = (1,) * self.problem.geometry.rank
            return tile_registers.may_use(self.access(WeightsTile(taps, 1, 1, 1, self.vector_axis, 1)))
        return self.vector_axis is not WeightsAxis.GROUPS or self.problem.geometry.groups > 1

    def access(self, tile: WeightsTile) -> WeightsAccess:
        """How a tile reads and writes."""
        return WeightsAccess(self.machine, self.problem, tile)

    def least_cost(self) -> float:
        """The cost of the best tile, in cycles of one core; in tile registers with what cache blocks pack again."""
        cycles, _, tile = _ranked(self)[0]
        access = self.access(tile)
        if not tile.tile_rows:
            return cycles
        partitioning = WeightsPartitioning(access, cache_block(access, cache_block_size(access)), access.blocks)
        return cycles + packing_again(access, partitioning.surplus)

    def plan(self, decisions: Decisions) -> WeightsPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        best = _best_tiles(self)
        access = self.access(best[decisions.draw("tile", range(len(best)), 0)])
        blocks = self._draw_blocks(decisions, access)
        partitioning = WeightsPartitioning(access, self._draw_cache_block(decisions, access), blocks)
        split_k = decisions.draw_divisor("split_k", partitioning.cache_blocks, partitioning.split_k)
        names = ("g_partitions", "o_partitions", "c_partitions")
        wanted = zip(names, partitioning.tile_counts, partitioning.partitions(split_k))
        partitions = [decisions.draw_divisor(*draw) for draw in wanted]
        packs = self._draw_packs(decisions, partitioning, split_k, partitions)
        blocks = _whole_blocks(partitioning, blocks, packs, partitions)
        if access.serves_in_place(blocks[1]):
            blocks = blocks[0], 0
        prefetch = self._draw_prefetch(decisions, partitioning, blocks, packs)
        count = summation_blocks(access, partitioning.cache_block)
        several = count if count > 1 else None
        return WeightsPlan(
            access.tile, *blocks, packs, partitioning.cache_block, prefetch, several, split_k, *partitions
        )

    def _draw_blocks(self, decisions: Decisions, access: WeightsAccess) -> tuple[int, int]:
        """How many channels c, and o, are packed together; a search may draw it where the operands may also be read in
        place."""
        if not access.is_whole_product:
            return access.blocks
        c_block, o_block = access.packed_blocks
        found = list(product((0, c_block), (0, o_block)))
        return found[decisions.draw("blocks", range(len(found)), found.index(access.blocks))]

    def _draw_cache_block(self, decisions: Decisions, access: WeightsAccess) -> tuple[int, ...]:
        """Images, and positions along each axis, of a cache block."""
        limits = [LEAST_CACHE_BLOCK << power for power in range(6)]
        limit = decisions.draw("cache_block", limits, cache_block_size(access))
        return cache_block(access, limit)

    def _draw_packs(
        self, decisions: Decisions, partitioning: WeightsPartitioning, split_k: int, partitions: Sequence[int]
    ) -> tuple[Packs, Packs]:
        """Where x, and y, are packed."""
        default = partitioning.packs(split_k, partitions)
        if not any(partitioning.blocks):
            return default
        places = list(product((Packs.WORK_ITEM, Packs.BEFORE), repeat=2))
        x_packs, y_packs = places[decisions.draw("packs", range(len(places)), places.index(default))]
        return x_packs, y_packs

    def _draw_prefetch(
        self,
        decisions: Decisions,
        partitioning: WeightsPartitioning,
        blocks: tuple[int, int],
        packs: tuple[Packs, Packs],
    ) -> int:
        """The prefetch distance in positions. What a matrix product reads in place, and y that is packed beside it, is
        prefetched for the next cache block while this one is summed. What vectors over groups read is prefetched
        `CpuMachine.prefetch_positions` ahead. If both operands are packed, and in NCX, 0."""
        c_block, o_block = blocks
        if self.vector_axis is WeightsAxis.GROUPS and (
            partitioning.access.packs_to_registers or not (c_block and o_block)
        ):
            ahead = self.machine.prefetch_positions
        elif partitioning.access.broadcasts_in_place:
            return 0
        elif not c_block or (packs[1] is Packs.WORK_ITEM and not o_block):
            ahead = prod(partitioning.cache_block)
        else:
            return 0
        return decisions.draw("prefetch", [0, ahead // 2, ahead, 2 * ahead], ahead)


def cache_block(access: WeightsAccess, limit: int) -> tuple[int, ...]:
    """Images, and positions along each axis, of a cache block of at most `limit` positions, or of more where these are
    few. In tile registers it has whole K blocks."""
    *outer, last = access.extents
    run = tile_registers.positions(last) if access.tile.tile_rows else 1
    extents = [*outer, last // run]
    inner = inner_extents(extents, max(limit // run, 1))
    # Depthwise sums stay in registers for a whole filter: with longer blocks block6_depthwise took 1.7 times as long.
    if access.tile.groups == 1 and access.problem.tensor_bytes >= SMALL_TENSORS:
        inner = _lengthened(inner, extents, run, limit)
    return (*inner[:-1], inner[-1] * run)


def _lengthened(inner: Sequence[int], extents: Sequence[int], run: int, limit: int) -> list[int]:
    """The steps of a cache block along each axis; `run` positions are a step of the last one. If they are too few, as
    of 13 x 13 positions a single row, there are more along the innermost axis of which it has a part: so many that the
    block has about `limit` positions, but at least `LEAST_CACHE_BLOCK`, and at most `LONGEST` times the limit."""
    if prod(inner) * run >= min(LEAST_CACHE_BLOCK, limit // 2) or list(inner) == list(extents):
        return list(inner)
    axis = max(at for at, (part, whole) in enumerate(zip(inner, extents)) if part < whole)
    each = prod(inner[axis + 1 :]) * run
    enough = [size for size in divisors(extents[axis]) if LEAST_CACHE_BLOCK <= size * each <= LONGEST * limit]
    steps = min(enough, key=lambda size: max(size * each / limit, limit / (size * each)), default=inner[axis])
    return [*inner[:axis], steps, *inner[axis + 1 :]]


def _whole_blocks(
    partitioning: WeightsPartitioning, blocks: tuple[int, int], packs: tuple[Packs, Packs], partitions: Sequence[int]
) -> tuple[int, int]:
    """Packed blocks, of fewer tiles where a partition would otherwise begin inside of a block that it packs: conditions
    would then cut off a part of the block."""
    (_, o_partitions, c_partitions), (_, o_parts, c_parts) = partitions, partitioning.tile_counts
    tile = partitioning.access.tile
    channels = c_parts // c_partitions * tile.c, o_parts // o_partitions * tile.o
    c_block, o_block = (
        gcd(block, size) if block and where is Packs.WORK_ITEM and count > 1 else block
        for block, size, where, count in zip(blocks, channels, packs, (c_partitions, o_partitions))
    )
    return c_block, o_block


@lru_cache(maxsize=16)  # the rule's cost asks first, then its schedule
def _ranked(planner: WeightsPlanner) -> list[tuple[float, int, WeightsTile]]:
    """(cost in cycles, products, tile), the cheapest first; of equally cheap ones, that with the fewest products."""
    vectors = tiles(planner.machine, planner.vector_axis, planner.problem)
    found = tile_registers.tiles(planner.problem) if planner.in_tile_registers else vectors
    costs = ((cost(planner.access(tile)), products(planner.problem, tile), tile) for tile in found)
    return sorted(each for each in costs if each[0] < inf)


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WeightsPlanner) -> list[WeightsTile]:
    """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
    cheapest = _ranked(planner)[:BEST_TILES]
    best = [(cycles * _slowed(planner.access(tile)), products, tile) for cycles, products, tile in cheapest]
    return [tile for *_, tile in sorted(best)]


def _slowed(access: WeightsAccess) -> float:
    """The factor by which a tile's cost counts because its channels cannot be split well. Few work items are left, for
    example if the tile makes a prime number of blocks; or work items cannot finish their parts of the filter, which
    then takes workspace for all of it."""
    partitioning = WeightsPartitioning(access, cache_block(access, cache_block_size(access)), access.blocks)
    split_k = partitioning.split_k
    partitions = partitioning.partitions(split_k)
    few_work_items = 2 * split_k * prod(partitions) <= WORK_ITEMS
    return (FEW_WORK_ITEMS if few_work_items else 1.0) * (
        1.0 if partitioning.has_room(split_k, partitions) else NO_ROOM
    )
