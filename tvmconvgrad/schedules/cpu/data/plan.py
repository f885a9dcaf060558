"""The numbers of the schedule of data gradients and forward convolutions: from a cost model, or from a search.

The register tile is chosen first. Everything else follows from it: what is read in place, how positions and channels
are split into work items, and so what is packed, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.cpu.costs import BEST_TILES, STARTING
from tvmconvgrad.schedules.cpu.data import masked, tile_registers
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.partition import DataPartitioning
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.cpu.data.summation import summation_blocks
from tvmconvgrad.schedules.cpu.data.tiles import cost, packing_again, tiles
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions.plain import filter_is_plain
from tvmconvgrad.schedules.factors import divisors, least_divisor
from tvmconvgrad.spec import Gradient

MOST_INNER_GROUP_BLOCKS = 8
"""A search may compute so many group blocks at each M block. MobileNetV2's depthwise forwards with 8 took 0.97 to 1.02
times as long as with 2 (an Intel Xeon with AMX)."""


@dataclass(frozen=True)
class DataPlan:
    """All numbers of the schedule."""

    tile: DataTile
    block_k: int
    """Channels of K that are innermost in packed operands."""
    packs: Packs
    """Where the data is packed."""
    packs_filter: Packs
    """Where panels are packed, likewise."""
    prefetch: int
    """Prefetch distance of data that is read in place: in positions, or, of depthwise sums, in rows; 0: none."""
    k_cache_blocks: int
    """The number of cache blocks of K, which are added to the result one after the other."""
    summation_blocks: int | None
    """The number of blocks in which products are added up (summation.py); None: they are added up in one chain."""
    non_temporal: int
    """1 if results are written by non-temporal stores, else 0."""
    partition_tiles: int
    """Tiles along positions that a partition should have."""
    group_partitions: int
    n_partitions: int
    leaves_out_by_position: int | None
    """1 if products with padding along the last axis are left out position by position (sum_axis.py), else 0; None
    where they cannot be, or are few."""
    inner_group_blocks: int | None
    """Group blocks that are computed at each M block, one after the other; None for all but depthwise sums in NXC."""


@dataclass(frozen=True)
class DataPlanner:
    """Plans the sums of these sizes, with vectors over `vector_axis`, for a machine."""

    machine: CpuMachine
    vector_axis: DataAxis
    sizes: DataSizes
    in_tile_registers: bool = False

    def is_applicable(self) -> bool:
        """Whether vectors may lie along `vector_axis`, and sums in tile registers."""
        if self.in_tile_registers:
            return tile_registers.may_use(self.access(DataTile(1, 1, 1, self.vector_axis, tile_rows=1)))
        problem, geometry = self.sizes.problem, self.sizes.problem.geometry
        is_strided = problem.gradient is Gradient.FORWARD and geometry.strides[-1] > 1 and geometry.k[-1] > 1
        if self.vector_axis is DataAxis.K:
            return self._may_sum_lanes()
        if self.vector_axis is DataAxis.M:
            return not is_strided or masked.reads_in_place(self.machine, self.sizes)
        return self.vector_axis is not DataAxis.GROUPS or geometry.groups > 1

    def _may_sum_lanes(self) -> bool:
        """Whether the channels of K are contiguous in the data and in the filter, in whole vectors."""
        problem, sizes = self.sizes.problem, self.sizes
        last = "O" if problem.gradient is Gradient.DATA else "C"
        contiguous = problem.data_format == "NXC" and problem.filter_axes.endswith(last)
        tile = DataTile(1, 1, 1, self.vector_axis)
        return contiguous and bool(sizes.sums) and filter_is_plain(problem, sizes.blocking(tile, self.machine.lanes))

    def access(self, tile: DataTile) -> DataAccess:
        """How a tile reads and writes."""
        return DataAccess(self.machine, self.sizes, tile)

    def least_cost(self) -> float:
        """The cost of the best tile, in cycles of one core, with short parts of rows, and what its work items pack
        again: WaveNet's dilated4 and dilated64 in NCX, whose positions split badly, would pack all data twice, and take
        1.8 and 1.25 times as long as with vectors over positions (an Intel Xeon with AMX)."""
        access = self.access(_best_tiles(self)[0])
        partitioning = DataPartitioning(access)
        return cost(access) + packing_again(access, partitioning.packed) + partitioning.positions.restarting

    def plan(self, decisions: Decisions) -> DataPlan:
        """The numbers of the schedule, as the model or a search draws them."""
        best = _best_tiles(self)
        tile = best[decisions.draw("tile", range(len(best)), 0)]
        access = self.access(tile)
        partitioning = DataPartitioning(access)
        partition_tiles = decisions.draw(
            "partition_tiles", [4 << power for power in range(8)], partitioning.positions.partitions.tiles
        )
        groups, n_blocks = self.sizes.group_blocks(tile), self.sizes.n_blocks(tile)
        group_partitions = decisions.draw_divisor("group_partitions", groups, partitioning.group_partitions)
        n_partitions = decisions.draw_divisor("n_partitions", n_blocks, partitioning.n_partitions(group_partitions))
        packs_filter = self._draw_packs_filter(decisions, partitioning, partition_tiles)
        may_leave_out = access.leaves_out_by_position and not partitioning.splits_rows(partition_tiles)
        by_position = decisions.draw("leaves_out_by_position", (0, 1), 1) if may_leave_out else None
        in_place = access.data_in_place and bool(by_position or not access.implicit_axes_in_place)
        packs = self._draw_packs(decisions, partitioning, partition_tiles, n_partitions, packs_filter, in_place)
        prefetch = self._draw_prefetch(decisions, access) if packs is Packs.IN_PLACE else 0
        block_k = access.block_k(in_place=packs is Packs.IN_PLACE)
        k_cache_blocks = 1
        if access.may_block_k:
            k_blocks = -(-self.sizes.k // block_k)
            least = least_divisor(k_blocks, access.planned_k_cache_blocks)
            k_cache_blocks = decisions.draw("k_cache_blocks", divisors(k_blocks), least)
        blocks = summation_blocks(self.sizes, tile, block_k, k_cache_blocks)
        non_temporal = 0
        stages = partitioning.stages_results(partition_tiles, group_partitions, n_partitions)
        if stages or (access.may_store_non_temporally and k_cache_blocks == 1):
            non_temporal = decisions.draw("non_temporal", (0, 1), int(access.stores_non_temporally))
        inner_group_blocks = None
        if partitioning.may_have_inner_group_blocks:
            count = groups // group_partitions
            counts = [part for part in divisors(count) if part <= MOST_INNER_GROUP_BLOCKS]
            default = partitioning.inner_group_blocks(count)
            inner_group_blocks = decisions.draw("inner_group_blocks", counts, default)
        return DataPlan(
            tile,
            block_k,
            packs,
            packs_filter,
            prefetch,
            k_cache_blocks,
            blocks if blocks > 1 else None,
            non_temporal,
            partition_tiles,
            group_partitions,
            n_partitions,
            by_position,
            inner_group_blocks,
        )

    def _draw_prefetch(self, decisions: Decisions, access: DataAccess) -> int:
        """The prefetch distance of data that is read in place. Loads of tile registers leave no time for prefetches:
        with them 8 forwards of 1x1 layers took 1.0 to 1.26 times as long (an Intel Xeon with AMX). Depthwise sums in
        NXC prefetch the next row. Where there are several output phases, neither they nor sums of data whose padding is
        left out prefetch any: each phase would prefetch the same."""
        along = access.tile.vector_axis is DataAxis.N and access.has_contiguous_vectors
        again = access.implicit_axes_in_place and len(self.sizes.sums) > 1
        ahead = access.tile.positions if along and not access.tile.tile_rows and not again else 0
        if access.masks_data:
            ahead = masked.rows_ahead(self.sizes)
        elif access.leaves_out_padding and len(self.sizes.sums) == 1 and self.sizes.problem.geometry.rank > 1:
            ahead = 1
        return decisions.draw("prefetch", [0, ahead, 2 * ahead], ahead) if ahead else 0

    def _draw_packs_filter(self, decisions: Decisions, partitioning: DataPartitioning, partition_tiles: int) -> Packs:
        """Where panels are packed: by each work item if they are large and no two work items share one; each is then
        used at once. Not where a run of the filter has taps of several phases, and there is room for all panels."""
        access = partitioning.access
        if access.filter_in_place:
            return Packs.IN_PLACE
        if access.tile.vector_axis is not DataAxis.N:
            return Packs.BEFORE
        interleaves = bool(access.phases_of_one_run) and self._has_room(access, Packs.BEFORE)
        alone = partitioning.position_partitions(partition_tiles) == 1 and not access.filter_fits_half_l2
        by_work_item = alone and not interleaves
        return (Packs.BEFORE, Packs.WORK_ITEM)[decisions.draw("packs_filter", (0, 1), int(by_work_item))]

    def _draw_packs(
        self,
        decisions: Decisions,
        partitioning: DataPartitioning,
        partition_tiles: int,
        n_partitions: int,
        packs_filter: Packs,
        in_place: bool,
    ) -> Packs:
        """Where the data is packed: by work items if that is cheaper, or if there is no room for all of it; nowhere if
        it may be read `in_place`."""
        access, partitions = partitioning.access, partitioning.positions.partitions
        if access.masks_data:
            return Packs.IN_PLACE
        places, default = [Packs.BEFORE], Packs.BEFORE
        if partitioning.work_items_correspond(partition_tiles, n_partitions):
            places.append(Packs.WORK_ITEM)
            saves = 2 * partitions.surplus <= partitions.work_items and not self._has_room(access, packs_filter)
            if saves or partitioning.may_pack_by_work_item(n_partitions):
                default = Packs.WORK_ITEM
        if in_place:
            places.append(Packs.IN_PLACE)
            default = Packs.IN_PLACE
        return places[decisions.draw("packs", range(len(places)), places.index(default))]

    def _has_room(self, access: DataAccess, packs_filter: Packs) -> bool:
        """Whether all that is packed before the work items takes no more memory than the tensors."""
        data = self.sizes.packed(access.blocking(in_place=False, implicit_axes=access.implicit_axes))
        panels = prod(self.sizes.problem.filter_shape) if packs_filter is Packs.BEFORE else 0
        return access.has_room(data + panels)


@lru_cache(maxsize=16)  # the rule's cost asks first, then its schedule
def _costs(planner: DataPlanner) -> list[tuple[float, DataAccess]]:
    """The cost, in cycles, of each tile whose sums stay in registers."""
    vectors = tiles(planner.machine, planner.vector_axis, planner.sizes)
    found = tile_registers.tiles(planner.sizes, planner.vector_axis) if planner.in_tile_registers else vectors
    accesses = map(planner.access, found)
    return [(cycles, access) for access in accesses if (cycles := cost(access)) < inf]


@lru_cache(maxsize=16)  # a search asks the same planner for thousands of plans
def _best_tiles(planner: DataPlanner) -> list[DataTile]:
    """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory.

    Among the cheapest, traffic, short parts of rows and the start of work items count, too: a tile whose blocks cannot
    be split evenly may have partitions with much traffic, or one work item for each block. Tiles whose panels have no
    room come last.
    """
    products = planner.sizes.products
    costs = [(not each.has_panels, cycles, products(each.tile), each.tile, each) for cycles, each in _costs(planner)]
    best = []
    for no_room, cycles, surplus, tile, access in sorted(costs, key=lambda each: each[:4])[:BEST_TILES]:
        partitioning = DataPartitioning(access)
        partitions = partitioning.positions.partitions
        moving = planner.machine.memory_cycles_per_byte * partitions.traffic + partitioning.positions.restarting
        best.append((no_room, cycles + moving + STARTING * partitions.work_items, surplus, tile))
    return [tile for *_, tile in sorted(best)]
