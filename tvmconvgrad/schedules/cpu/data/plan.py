"""The numbers of a schedule of sums over positions, from a model of the machine, or drawn by a search.

The register tile is chosen first, since all else follows from it: what is read where it lies, how positions and
channels are split into tasks, and so what is packed, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, STARTING, TRAFFIC
from tvmconvgrad.schedules.cpu.data.access import Access
from tvmconvgrad.schedules.cpu.data.sizes import Sizes, Tile
from tvmconvgrad.schedules.cpu.data.tiles import cost, tiles
from tvmconvgrad.schedules.cpu.data.work_items import Splitting
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import divisors, least_divisor
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te.plain import filter_is_plain


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    summed: int
    packs: str
    """Where the data is packed: in each "task", "before" all tasks, or not at all: ""."""
    packs_filter: str
    """Where panels are packed, likewise."""
    fetch: int
    """How many positions ahead data that is read in place is fetched; 0: not at all."""
    parts: int
    """In how many parts the summed channels are added to the result."""
    streams: int
    """Whether results are stored past the caches."""
    range_tiles: int
    """How many row blocks a range of positions should have."""
    group_ranges: int
    column_ranges: int


@dataclass(frozen=True)
class Planner:
    """Plans the sums of these sizes, with vectors over `lanes`, for a machine."""

    machine: Machine
    lanes: str
    sizes: Sizes

    def takes(self) -> bool:
        """Whether vectors may lie over these lanes."""
        problem, geometry = self.sizes.problem, self.sizes.problem.geometry
        apart = problem.gradient is Gradient.FORWARD and geometry.strides[-1] > 1 and geometry.k[-1] > 1
        if self.lanes == "summed":
            return self._may_sum_lanes()
        return not (self.lanes == "groups" and geometry.groups == 1) and not (self.lanes == "positions" and apart)

    def _may_sum_lanes(self) -> bool:
        """Whether the summed channels lie side by side in the data and in the filter, in whole vectors."""
        problem, sizes = self.sizes.problem, self.sizes
        last = "O" if problem.gradient is Gradient.DATA else "C"
        beside = problem.data_format == "NXC" and problem.filter_axes.endswith(last)
        tile = Tile(1, 1, 1, self.lanes)
        return beside and bool(sizes.sums) and filter_is_plain(problem, sizes.multiples(tile, self.machine.lanes))

    def access(self, tile: Tile) -> Access:
        """How a tile reads and writes."""
        return Access(self.machine, self.sizes, tile)

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return min(cycles for cycles, _ in _costs(self))

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers, as the model or whoever searches draws them."""
        best = _best_tiles(self)
        tile = best[decisions.draw("tile", range(len(best)), 0)]
        access = self.access(tile)
        splitting = Splitting(access)
        range_tiles = decisions.draw("range_tiles", [4 << power for power in range(8)], splitting.ranges.tiles)
        groups, columns = self.sizes.group_blocks(tile), self.sizes.column_blocks(tile)
        group_ranges = decisions.draw_divisor("group_ranges", groups, splitting.group_ranges)
        column_ranges = decisions.draw_divisor("column_ranges", columns, splitting.column_ranges(group_ranges))
        packs_filter = self._draw_packs_filter(decisions, splitting, range_tiles)
        packs = self._draw_packs(decisions, splitting, range_tiles, column_ranges, packs_filter)
        fetch = 0
        if not packs and tile.lanes == "channels":
            fetch = decisions.draw("fetch", [0, tile.positions, 2 * tile.positions], tile.positions)
        summed = access.summed(in_place=not packs)
        parts = 1
        if access.may_add:
            blocks = -(-self.sizes.summed // summed)
            parts = decisions.draw("parts", divisors(blocks), least_divisor(blocks, access.parts))
        streams = 0
        if access.may_stream and parts == 1:
            streams = decisions.draw("streams", (0, 1), int(access.streams))
        return Plan(tile, summed, packs, packs_filter, fetch, parts, streams, range_tiles, group_ranges, column_ranges)

    def _draw_packs_filter(self, decisions: Decisions, splitting: Splitting, range_tiles: int) -> str:
        """Where panels are packed: by tasks, each of which uses its own at once, if they are large and no two share
        them."""
        access = splitting.access
        if access.filter_in_place:
            return ""
        if access.tile.lanes != "channels":
            return "before"
        by_task = splitting.position_ranges(range_tiles) == 1 and not access.filter_stays
        return ("before", "task")[decisions.draw("packs_filter", (0, 1), int(by_task))]

    def _draw_packs(
        self, decisions: Decisions, splitting: Splitting, range_tiles: int, column_ranges: int, packs_filter: str
    ) -> str:
        """Where the data is packed: by tasks where that is cheaper, or where there is no room for all of it."""
        access, ranges = splitting.access, splitting.ranges
        places, default = ["before"], "before"
        if splitting.tasks_correspond(range_tiles, column_ranges):
            places.append("task")
            saves = 2 * ranges.surplus <= ranges.tasks and not self._has_room(access, packs_filter)
            if saves or splitting.may_pack_by_task(column_ranges):
                default = "task"
        if access.data_in_place:
            places.append("")
            default = ""
        return places[decisions.draw("packs", range(len(places)), places.index(default))]

    def _has_room(self, access: Access, packs_filter: str) -> bool:
        """Whether what is packed before all tasks takes no more memory than the tensors."""
        data = self.sizes.packed(access.multiples(in_place=False, bare_axes=access.bare_axes))
        panels = prod(self.sizes.problem.filter_shape) if packs_filter == "before" else 0
        return access.has_room(data + panels)


@lru_cache(maxsize=16)  # the rule's cost asks first, then its schedule
def _costs(planner: Planner) -> list[tuple[float, Access]]:
    """What each tile costs whose sums stay in registers."""
    accesses = map(planner.access, tiles(planner.machine, planner.lanes, planner.sizes))
    return [(cycles, access) for access in accesses if (cycles := cost(access)) < inf]


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: Planner) -> list[Tile]:
    """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory.

    A tile whose blocks cannot be split evenly may have ranges with much traffic, or a task for each block, which counts
    among the cheapest; and wide ones may have panels for which there is no room.
    """
    products = planner.sizes.products
    costs = [(not each.has_panels, cycles, products(each.tile), each.tile, each) for cycles, each in _costs(planner)]
    best = []
    for no_room, cycles, surplus, tile, access in sorted(costs, key=lambda each: each[:4])[:BEST_TILES]:
        ranges = Splitting(access).ranges
        best.append((no_room, cycles + TRAFFIC * ranges.traffic + STARTING * ranges.tasks, surplus, tile))
    return [tile for *_, tile in sorted(best)]
