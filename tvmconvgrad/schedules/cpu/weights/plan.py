"""The numbers of a schedule of filter gradients, from a model of the machine, or drawn by a search.

The register tile is chosen first, since all else follows from it: what is read where it lies, how large a cache block
of positions stays in the cache, how the cache blocks and the channels are split into work items, and so where operands
are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES
from tvmconvgrad.schedules.cpu.weights.access import LEAST_CHUNK, WeightsAccess, WeightsTile
from tvmconvgrad.schedules.cpu.weights.partition import TASKS, Splitting, cache_block_size
from tvmconvgrad.schedules.cpu.weights.tiles import cost, products, tiles
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.spec import Problem

AHEAD = 64
"""How many positions ahead vectors over groups have their data fetched."""

FEW_TASKS = 1.05
"""By what factor the cost of a tile counts more that leaves no more than half as many work items as there should be."""

NO_ROOM = 1.1
"""By what factor the cost of a tile counts more whose sums, or packed data, take more memory than the tensors do."""


@dataclass(frozen=True)
class WeightsPlan:
    """All numbers of the schedule."""

    tile: WeightsTile
    c_block: int
    o_block: int
    """How many channels are packed together; 0 where the data is read where it lies."""
    packs: tuple[str, str]
    """Where x, and y, are packed: "work_item" by work item, or "before" all work items, where too many work items would
    pack the same."""
    cache_block: tuple[int, ...]
    fetch: int
    """How many positions ahead data is fetched, about: along several axes by whole rows; 0: only what is packed is, and
    not far."""
    split_k: int
    g_partitions: int
    o_partitions: int
    c_partitions: int

    @property
    def partitions(self) -> tuple[int, int, int]:
        """Of groups, of channels o and of channels c."""
        return self.g_partitions, self.o_partitions, self.c_partitions

    @property
    def fetches_blocks(self) -> bool:
        """Whether a step also fetches what the next tiles read of x: a block that was packed before all work items, and
        is in memory by now."""
        return self.c_block > 0 and self.packs[0] == "before" and self.tile.groups == 1


@dataclass(frozen=True)
class WeightsPlanner:
    """Plans a filter gradient, with vectors over `vector_axis`, for a machine."""

    machine: CpuMachine
    vector_axis: str
    problem: Problem

    def access(self, tile: WeightsTile) -> WeightsAccess:
        """How a tile reads and writes."""
        return WeightsAccess(self.machine, self.problem, tile)

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return _ranked(self)[0][0]

    def plan(self, decisions: Decisions) -> WeightsPlan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        access = self.access(best[decisions.draw("tile", range(len(best)), 0)])
        blocks = self._draw_blocks(decisions, access)
        splitting = Splitting(access, self._draw_cache_block(decisions, access), blocks)
        split_k = decisions.draw_divisor("split_k", splitting.cache_blocks, splitting.split_k)
        names = ("g_partitions", "o_partitions", "c_partitions")
        wanted = zip(names, splitting.parts, splitting.partitions(split_k))
        partitions = [decisions.draw_divisor(*draw) for draw in wanted]
        packs = self._draw_packs(decisions, splitting, split_k, partitions)
        blocks = _whole_blocks(splitting, blocks, packs, partitions)
        if access.serves_in_place(blocks[1]):
            blocks = blocks[0], 0
        fetch = self._draw_fetch(decisions, splitting, blocks, packs)
        return WeightsPlan(access.tile, *blocks, packs, splitting.cache_block, fetch, split_k, *partitions)

    def _draw_blocks(self, decisions: Decisions, access: WeightsAccess) -> tuple[int, int]:
        """How many channels are packed together: as a search draws where the data may as well be read where it lies."""
        if not access.is_whole_product:
            return access.blocks
        c_block, o_block = access.packed_blocks
        found = list(product((0, c_block), (0, o_block)))
        return found[decisions.draw("blocks", range(len(found)), found.index(access.blocks))]

    def _draw_cache_block(self, decisions: Decisions, access: WeightsAccess) -> tuple[int, ...]:
        """Images and positions along each axis of a cache block."""
        limits = [LEAST_CHUNK << power for power in range(6)]
        return tuple(inner_extents(access.extents, decisions.draw("cache_block", limits, cache_block_size(access))))

    def _draw_packs(
        self, decisions: Decisions, splitting: Splitting, split_k: int, partitions: Sequence[int]
    ) -> tuple[str, str]:
        """Where x, and y, are packed."""
        default = splitting.packs(split_k, partitions)
        if not any(splitting.blocks):
            return default
        places = list(product(("work_item", "before"), repeat=2))
        x_packs, y_packs = places[decisions.draw("packs", range(len(places)), places.index(default))]
        return x_packs, y_packs

    def _draw_fetch(
        self, decisions: Decisions, splitting: Splitting, blocks: tuple[int, int], packs: tuple[str, str]
    ) -> int:
        """What a product reads in place is fetched for the next cache block while all channels sweep this one, and what
        is packed beside it; what vectors over groups read once, a little ahead. y that lies packed is near by then."""
        c_block, o_block = blocks
        if self.vector_axis == "groups" and (splitting.access.packs_to_registers or not (c_block and o_block)):
            ahead = AHEAD
        elif not c_block or (packs[1] == "work_item" and not o_block):
            ahead = prod(splitting.cache_block)
        else:
            return 0
        return decisions.draw("fetch", [0, ahead // 2, ahead, 2 * ahead], ahead)


def _whole_blocks(
    splitting: Splitting, blocks: tuple[int, int], packs: tuple[str, str], partitions: Sequence[int]
) -> tuple[int, int]:
    """Blocks, of fewer tiles where a work item would begin to pack inside of one: conditions would cut it off."""
    (_, o_partitions, c_partitions), (_, o_parts, c_parts) = partitions, splitting.parts
    tile = splitting.access.tile
    channels = c_parts // c_partitions * tile.c, o_parts // o_partitions * tile.o
    c_block, o_block = (
        gcd(block, size) if block and where == "work_item" and count > 1 else block
        for block, size, where, count in zip(blocks, channels, packs, (c_partitions, o_partitions))
    )
    return c_block, o_block


@lru_cache(maxsize=16)  # the rule's cost asks first, then its schedule
def _ranked(planner: WeightsPlanner) -> list[tuple[float, int, WeightsTile]]:
    """What each tile costs, its products, and the tile, the cheapest first; of equally cheap ones, that with the least
    surplus in work."""
    found = tiles(planner.machine, planner.vector_axis, planner.problem)
    costs = ((cost(planner.access(tile)), products(planner.problem, tile), tile) for tile in found)
    return sorted(each for each in costs if each[0] < inf)


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: WeightsPlanner) -> list[WeightsTile]:
    """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
    cheapest = _ranked(planner)[:BEST_TILES]
    best = [(cycles * _slowed(planner.access(tile)), products, tile) for cycles, products, tile in cheapest]
    return [tile for *_, tile in sorted(best)]


def _slowed(access: WeightsAccess) -> float:
    """By what factor a tile is slowed whose channels cannot be split well: that leaves few work items, as where it
    makes a prime number of blocks, or work items that cannot finish their parts of the filter, all of which then waits
    for them."""
    splitting = Splitting(access, tuple(inner_extents(access.extents, cache_block_size(access))), access.blocks)
    split_k = splitting.split_k
    partitions = splitting.partitions(split_k)
    few_work_items = 2 * split_k * prod(partitions) <= TASKS
    return (FEW_TASKS if few_work_items else 1.0) * (1.0 if splitting.has_room(split_k, partitions) else NO_ROOM)
