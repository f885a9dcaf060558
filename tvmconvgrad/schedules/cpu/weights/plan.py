"""The numbers of a schedule of filter gradients, from a model of the machine, or drawn by a search.

The register tile is chosen first, since all else follows from it: what is read where it lies, how large a chunk of
positions stays in the cache, how the chunks and the channels are split into tasks, and so where operands are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES
from tvmconvgrad.schedules.cpu.weights.access import LEAST_CHUNK, Access, Tile
from tvmconvgrad.schedules.cpu.weights.tiles import cost, products, tiles
from tvmconvgrad.schedules.cpu.weights.work_items import TASKS, Splitting, chunk_size
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.spec import Problem

AHEAD = 64
"""How many positions ahead vectors over groups have their data fetched."""

FEW_TASKS = 1.05
"""By what factor the cost of a tile counts more that leaves no more than half as many tasks as there should be."""

NO_ROOM = 1.1
"""By what factor the cost of a tile counts more whose sums, or packed data, take more memory than the tensors do."""


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    c_block: int
    o_block: int
    """How many channels are packed together; 0 where the data is read where it lies."""
    packs: tuple[str, str]
    """Where Y, and X, are packed: "task" by task, or "before" all tasks, where too many tasks would pack the same."""
    chunk: tuple[int, ...]
    fetch: int
    """How many positions ahead data is fetched, about: along several axes by whole rows; 0: only what is packed is, and
    not far."""
    splits: int
    g_ranges: int
    o_ranges: int
    c_ranges: int

    @property
    def ranges(self) -> tuple[int, int, int]:
        """Of groups, of channels o and of channels c."""
        return self.g_ranges, self.o_ranges, self.c_ranges

    @property
    def fetches_blocks(self) -> bool:
        """Whether a step also fetches what the next tiles read of Y: a block that was packed before all tasks, and is
        in memory by now."""
        return self.c_block > 0 and self.packs[0] == "before" and self.tile.groups == 1


@dataclass(frozen=True)
class Planner:
    """Plans a filter gradient, with vectors over `lanes`, for a machine."""

    machine: Machine
    lanes: str
    problem: Problem

    def access(self, tile: Tile) -> Access:
        """How a tile reads and writes."""
        return Access(self.machine, self.problem, tile)

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return _ranked(self)[0][0]

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        access = self.access(best[decisions.draw("tile", range(len(best)), 0)])
        blocks = self._draw_blocks(decisions, access)
        splitting = Splitting(access, self._draw_chunk(decisions, access), blocks)
        splits = decisions.draw_divisor("splits", splitting.chunks, splitting.splits)
        names = ("g_ranges", "o_ranges", "c_ranges")
        wanted = zip(names, splitting.parts, splitting.ranges(splits))
        ranges = [decisions.draw_divisor(*draw) for draw in wanted]
        packs = self._draw_packs(decisions, splitting, splits, ranges)
        blocks = _whole_blocks(splitting, blocks, packs, ranges)
        if access.serves_in_place(blocks[1]):
            blocks = blocks[0], 0
        fetch = self._draw_fetch(decisions, splitting, blocks, packs)
        return Plan(access.tile, *blocks, packs, splitting.chunk, fetch, splits, *ranges)

    def _draw_blocks(self, decisions: Decisions, access: Access) -> tuple[int, int]:
        """How many channels are packed together: as a search draws where the data may as well be read where it lies."""
        if not access.is_whole_product:
            return access.blocks
        c_block, o_block = access.packed_blocks
        found = list(product((0, c_block), (0, o_block)))
        return found[decisions.draw("blocks", range(len(found)), found.index(access.blocks))]

    def _draw_chunk(self, decisions: Decisions, access: Access) -> tuple[int, ...]:
        """Images and positions along each axis of a chunk."""
        limits = [LEAST_CHUNK << power for power in range(6)]
        return tuple(inner_extents(access.extents, decisions.draw("chunk", limits, chunk_size(access))))

    def _draw_packs(
        self, decisions: Decisions, splitting: Splitting, splits: int, ranges: Sequence[int]
    ) -> tuple[str, str]:
        """Where Y, and X, are packed."""
        default = splitting.packs(splits, ranges)
        if not any(splitting.blocks):
            return default
        places = list(product(("task", "before"), repeat=2))
        y_packs, x_packs = places[decisions.draw("packs", range(len(places)), places.index(default))]
        return y_packs, x_packs

    def _draw_fetch(
        self, decisions: Decisions, splitting: Splitting, blocks: tuple[int, int], packs: tuple[str, str]
    ) -> int:
        """What a product reads in place is fetched for the next chunk while all channels sweep this one, and what is
        packed beside it; what vectors over groups read once, a little ahead. X that lies packed is near by then."""
        c_block, o_block = blocks
        if self.lanes == "groups" and (splitting.access.packs_to_registers or not (c_block and o_block)):
            ahead = AHEAD
        elif not c_block or (packs[1] == "task" and not o_block):
            ahead = prod(splitting.chunk)
        else:
            return 0
        return decisions.draw("fetch", [0, ahead // 2, ahead, 2 * ahead], ahead)


def _whole_blocks(
    splitting: Splitting, blocks: tuple[int, int], packs: tuple[str, str], ranges: Sequence[int]
) -> tuple[int, int]:
    """Blocks, of fewer tiles where a task would begin to pack inside of one: conditions would cut it off."""
    (_, o_ranges, c_ranges), (_, o_parts, c_parts) = ranges, splitting.parts
    tile = splitting.access.tile
    channels = c_parts // c_ranges * tile.c, o_parts // o_ranges * tile.o
    c_block, o_block = (
        gcd(block, size) if block and where == "task" and count > 1 else block
        for block, size, where, count in zip(blocks, channels, packs, (c_ranges, o_ranges))
    )
    return c_block, o_block


@lru_cache(maxsize=16)  # the rule's cost asks first, then its schedule
def _ranked(planner: Planner) -> list[tuple[float, int, Tile]]:
    """What each tile costs, its products, and the tile, the cheapest first; of equally cheap ones, that with the least
    surplus in work."""
    found = tiles(planner.machine, planner.lanes, planner.problem)
    costs = ((cost(planner.access(tile)), products(planner.problem, tile), tile) for tile in found)
    return sorted(each for each in costs if each[0] < inf)


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: Planner) -> list[Tile]:
    """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
    cheapest = _ranked(planner)[:BEST_TILES]
    best = [(cycles * _slowed(planner.access(tile)), products, tile) for cycles, products, tile in cheapest]
    return [tile for *_, tile in sorted(best)]


def _slowed(access: Access) -> float:
    """By what factor a tile is slowed whose channels cannot be split well: that leaves few tasks, as where it makes a
    prime number of blocks, or tasks that cannot finish their parts of the filter, all of which then waits for them."""
    splitting = Splitting(access, tuple(inner_extents(access.extents, chunk_size(access))), access.blocks)
    splits = splitting.splits
    ranges = splitting.ranges(splits)
    few_tasks = 2 * splits * prod(ranges) <= TASKS
    return (FEW_TASKS if few_tasks else 1.0) * (1.0 if splitting.has_room(splits, ranges) else NO_ROOM)
