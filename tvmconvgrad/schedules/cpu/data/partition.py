"""How the sums of a register tile are split into work items: partitions of positions, of groups and of N.

Positions are split in the way that brings the least data from beyond L2 (positions.py). Where that gives too few work
items, groups and then N are split, too. A strided depthwise gradient of small images in NCX has a work item for each
group, or for a few if results are staged: its output phases share cache lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.positions import SURPLUS, PositionPartitioning
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis
from tvmconvgrad.schedules.cpu.data.tiles import multiplying
from tvmconvgrad.schedules.factors import divisors, inner_extents, largest_divisor, nearest_divisor
from tvmconvgrad.spec.dtypes import ITEM_BYTES

REPACKS = 4
"""At most so many partitions of N may each pack the same data; for more it is packed once, to memory. With half of it 7
sums change, and take 0.97 times as long; with twice, 4 and 1.05 (benchmarks/constants.py)."""

POSITION_BYTES = 2 * CACHE_LINE
"""Bytes of a position that depthwise sums take before they go on to the next one. With two lines the forwards and
data gradients of MobileNetV2 had 0.95 to 1.31 times the speed that they had with one, 1.08 in the mean; with 4 or 8
lines about the same. ConvNeXt's 7x7 ones, which take longer than their traffic, had 0.91 to 1.00 (an Intel Xeon with
AMX)."""


def _partitions(extents: Sequence[int], partition_tiles: int) -> int:
    """The number of partitions of about `partition_tiles` tiles; `extents` are images, and tiles along each axis."""
    return prod(extents) // prod(inner_extents(extents, partition_tiles))


@dataclass(frozen=True)
class DataPartitioning:
    """Splits the sums of a tile into work items."""

    access: DataAccess

    @cached_property
    def positions(self) -> PositionPartitioning:
        """Splits positions."""
        return PositionPartitioning(self.access)

    @property
    def group_partitions(self) -> int:
        """The number of partitions of groups that gives enough work items; with small images, at least so many that a
        work item's groups fit half of L1. Where output phases write to the same cache lines one after the other, a work
        item has one group: MobileNetV2's block4_depthwise and block6_depthwise (data) took 0.73 and 0.60 of the time
        that they took with groups of which half of L1 holds the data, where L3 held all tensors. If results are staged,
        a work item has groups whose planes are whole cache lines together, and fit half of L1 if they can:
        block3_depthwise took 0.75 of the time, and block2_depthwise 0.90 (an Intel Xeon with AMX)."""
        access, groups = self.access, self.access.sizes.problem.geometry.groups
        room = access.machine.l1_blocks // 2
        wanted = -(-self.positions.enough_work_items // self.positions.partitions.work_items)
        if not self.positions.has_small_images:
            return wanted
        wanted = max(wanted, groups * self.positions.image // room)
        if access.result_stride == 1:
            return wanted
        if not (access.may_stage_results and access.stores_non_temporally):
            return groups
        planes = {count: groups // count * access.sizes.plane for count in divisors(groups)}
        fit_l2 = [count for count, size in planes.items() if size <= access.machine.l2_blocks]
        whole = [count for count in fit_l2 if self._has_whole_lines(count)]
        few = [count for count in whole if count >= wanted and planes[count] <= room]
        return min(few) if few else max(whole, default=groups)

    def stages_results(self, partition_tiles: int, group_partitions: int, n_partitions: int) -> bool:
        """Whether work items can stage their results: each has whole planes of one image, or whole images, in whole
        cache lines, with all output phases."""
        if not self.access.may_stage_results or n_partitions > 1:
            return False
        m_blocks = self.access.sizes.m_blocks(self.access.tile)
        inner = [inner_extents(extents, partition_tiles) for extents in m_blocks]
        contiguous = all(
            part[1:] == extents[1:] and (part[0] == 1 or group_partitions == 1)
            for part, extents in zip(inner, m_blocks)
        )
        together = self.work_items_correspond(partition_tiles, n_partitions)
        return contiguous and together and self._has_whole_lines(group_partitions)

    def _has_whole_lines(self, group_partitions: int) -> bool:
        """Whether the planes of a partition of groups are whole cache lines."""
        sizes = self.access.sizes
        return sizes.problem.geometry.groups // group_partitions * sizes.plane % CACHE_LINE == 0

    def n_partitions(self, group_partitions: int) -> int:
        """The number of partitions of N that gives enough work items, together with so many of groups."""
        return -(-self.positions.enough_work_items // (self.positions.partitions.work_items * group_partitions))

    def may_pack_by_work_item(self, n_partitions: int) -> bool:
        """Whether each work item may pack its own data, so that it need not be packed before all of them."""
        return (
            n_partitions <= REPACKS
            and self._padding <= SURPLUS
            and self.positions.may_pack_again(self.positions.partitions.surplus)
        )

    @property
    def packed(self) -> float:
        """How often the data is packed: by each partition of positions and N that reads it, or once before all."""
        sizes, tile = self.access.sizes, self.access.tile
        group_partitions = nearest_divisor(sizes.group_blocks(tile), self.group_partitions)
        n_partitions = nearest_divisor(sizes.n_blocks(tile), self.n_partitions(group_partitions))
        return self.positions.partitions.surplus * n_partitions if self.may_pack_by_work_item(n_partitions) else 1.0

    @property
    def may_have_inner_group_blocks(self) -> bool:
        """Whether several group blocks may be computed at each M block: the channels of a position, each a group, are
        contiguous."""
        access = self.access
        by_groups = access.tile.vector_axis is DataAxis.GROUPS
        return by_groups and access.has_contiguous_vectors and access.sizes.is_depthwise

    def inner_group_blocks(self, count: int) -> int:
        """How many of `count` group blocks are computed at each M block: as many as have one or two whole cache lines,
        if moving the tensors takes longer than the sums. Otherwise one, since the rows that its taps read again then
        stay in L1; and where `count` is no number of whole lines. Three half lines of bf16 took 1.25 times as long as
        one (MobileNetV2's block3_depthwise, data)."""
        problem = self.access.sizes.problem
        width = ITEM_BYTES[problem.dtype] * self.access.tile.groups
        whole = CACHE_LINE // gcd(CACHE_LINE, width)
        sums_take_longer = multiplying(self.access) > self.access.machine.memory_cycles_per_byte * problem.tensor_bytes
        if sums_take_longer or count % whole:
            return 1
        return whole * largest_divisor(count // whole, POSITION_BYTES // (width * whole))

    def work_items_correspond(self, partition_tiles: int, n_partitions: int) -> bool:
        """Whether all sums have the same number of work items, so they can be fused
        (schedules/transforms/task_fusion.py)."""
        sizes, tile = self.access.sizes, self.access.tile
        counts = set()
        for size, m_blocks in zip(sizes.sums, sizes.m_blocks(tile)):
            of_n = largest_divisor(-(-size.n // tile.n), n_partitions)
            counts.add(_partitions(m_blocks, partition_tiles) * of_n)
        return len(counts) == 1

    def position_partitions(self, partition_tiles: int) -> int:
        """The number of partitions of so many tiles, of the sum that has most."""
        m_blocks = self.access.sizes.m_blocks(self.access.tile)
        return max((_partitions(extents, partition_tiles) for extents in m_blocks), default=1)

    def splits_rows(self, partition_tiles: int) -> bool:
        """Whether partitions of so many tiles are parts of rows, of some sum."""
        m_blocks = self.access.sizes.m_blocks(self.access.tile)
        return any(inner_extents(extents, partition_tiles)[-1] < extents[-1] for extents in m_blocks)

    @property
    def _padding(self) -> float:
        """The data with all its padding, as a multiple of what is packed before all work items, where the outer axes'
        padding is implicit. Work items pack all of it: of DeepLab's aspp_dilated18 and aspp_dilated12, 2.7 and 2.1
        times as much; they took 2.1 and 1.5 times as long (an Intel Xeon with AMX)."""
        sizes, access = self.access.sizes, self.access
        channels = sizes.problem.geometry.groups * sizes.k
        before = sizes.packed(access.blocking(in_place=False, implicit_axes=access.implicit_axes))
        return self.positions.read(self.positions.extents) * channels / before
