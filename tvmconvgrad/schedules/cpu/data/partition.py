"""How the sums of a register tile are split into work items: partitions of positions, of groups and of N.

There should be enough work items for many cores. But more work items read the panels, and the data at their borders,
more often, and larger ones need more cache. So positions are split in the way that brings the least data from beyond
L2; where that gives too few work items, groups and then N are split, too. A strided depthwise gradient of small images
in NCX has a work item for each group, or for a few if results are staged: its output phases share cache lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, PAGE_BYTES
from tvmconvgrad.schedules.cpu.data.access import TLB_PAGES, DataAccess
from tvmconvgrad.schedules.cpu.data.sizes import WORK_ITEMS, DataAxis
from tvmconvgrad.schedules.cpu.data.tiles import cost, multiplying
from tvmconvgrad.schedules.factors import divisors, inner_extents, largest_divisor, nearest_divisor
from tvmconvgrad.spec.dtypes import ITEM_BYTES

SURPLUS = 2
"""Work items may together pack so many times the data (neighbours share some); if they would pack more, the data is
packed once before all work items, which takes it through memory. With half of it 40 sums change, and take 1.07 times as
long; with twice, 2 and 1.04 (benchmarks/constants.py)."""

REPACKS = 4
"""At most so many partitions of N may each pack the same data; for more it is packed once, to memory. With half of it 7
sums change, and take 0.97 times as long; with twice, 4 and 1.05 (benchmarks/constants.py)."""

NEAR = 0.1
"""What a byte of contiguous panels costs from the last-level cache, as a share of what it costs from memory. With half
of it 8 sums change, and take 1.01 times as long; with twice, 9 and 0.99 (benchmarks/constants.py)."""

SHORT_RUN, RUN_CYCLES = 1024, 170
"""Where planes of NCX take a page or more, a work item's part of a row begins with a miss of the TLB, and with lines
that a core's own prefetcher does not know yet. If it begins within a cache line, two work items write that. Such parts
with fewer bytes than the first number cost so many cycles each. WaveNet's dilated1 and causal (data), whose rows of
16001 positions split badly, had parts of 504 and 384 bytes. With another tile, and causal with another rule, they were
1.73 and 1.38 times as fast, and 128 to 32 channels 1x1 on 101 x 101 positions 2.9 times (data). Parts of 384 bytes that
are whole lines were fast: with longer ones 64 and 128 channels to 8 and 64 on 97 x 96 positions took 1.15 to 1.6 times
as long (an Intel Xeon with AMX)."""

POSITION_BYTES = 2 * CACHE_LINE
"""Bytes of a position that depthwise sums take before they go on to the next one. With two lines the forwards and
data gradients of MobileNetV2 had 0.95 to 1.31 times the speed that they had with one, 1.08 in the mean; with 4 or 8
lines about the same. ConvNeXt's 7x7 ones, which take longer than their traffic, had 0.91 to 1.00 (an Intel Xeon with
AMX)."""

SLACK, MORE_TRAFFIC = 0.01, 1.1
"""To have enough work items, a sum may take longer by this share of its time, or have so many times the least
traffic. Sums that change with half and with twice, and their times: SLACK 4, 1.00 and 12, 1.00; MORE_TRAFFIC 0 and 31,
1.02 (benchmarks/constants.py, an AMD EPYC with Zen 4)."""


@dataclass(frozen=True)
class Partitions:
    """One way to split M into partitions of `tiles` M blocks each."""

    tiles: int
    work_items: int
    surplus: float
    """What all partitions read, as a multiple of the data: neighbours read the same elements at their border."""
    traffic: float
    """Bytes that come from beyond L2, about."""
    read: int
    """Elements of a channel that a partition reads."""


def _partitions(extents: Sequence[int], partition_tiles: int) -> int:
    """The number of partitions of about `partition_tiles` tiles; `extents` are images, and tiles along each axis."""
    return prod(extents) // prod(inner_extents(extents, partition_tiles))


@dataclass(frozen=True)
class DataPartitioning:
    """Splits the sums of a tile into work items."""

    access: DataAccess

    @cached_property
    def partitions(self) -> Partitions:
        """The partitions with about the least traffic from beyond L2 among those that have room; of these, the largest
        that give enough work items.

        A partition reads every panel, and reads its data once for every N block, from the cache that holds them; once
        for all where the N blocks of a tile follow each other. Panels that several partitions share are packed to
        memory before, and read from there.
        """
        sizes, tile = self.access.sizes, self.access.tile
        if not sizes.sums:
            return Partitions(1, 1, 1.0, 0.0, 0)
        extents = self._extents
        if self._has_small_images:
            return self._partition(extents, [1, *extents[1:]])
        most = min(prod(extents), self._most_tiles)
        limits = {most // part for part in range(1, min(most, 8 * WORK_ITEMS) + 1)}
        inners = {tuple(inner_extents(extents, limit)) for limit in limits}
        found = [self._partition(extents, inner) for inner in sorted(inners)]
        # Panels take the least memory if a single work item packs its own. Without panels it is the packed data that
        # takes memory, and smaller partitions pack less of it at a time.
        smallest = (
            self._partition(extents, extents)
            if self.access.panel
            else min(found, key=lambda partitions: partitions.read)
        )
        found = [partitions for partitions in found if self.has_room(partitions)] or [smallest]
        least = min(partitions.traffic for partitions in found)
        slack = SLACK * cost(self.access) / self.access.machine.memory_cycles_per_byte
        allowed = max(MORE_TRAFFIC * least, least + slack)
        best = [partitions for partitions in found if partitions.traffic <= allowed]
        enough = [partitions for partitions in best if partitions.work_items * sizes.group_blocks(tile) >= WORK_ITEMS]
        return max(enough, key=lambda r: r.tiles) if enough else min(best, key=lambda r: r.tiles)

    @property
    def restarting(self) -> float:
        """Cycles of one core, about, that short parts of rows cost, of data and result. They cost none where L2 holds
        all, nor where L1's TLB still knows the page of each channel when the next part begins."""
        access, problem = self.access, self.access.sizes.problem
        channels = problem.geometry.groups * (access.sizes.k + access.sizes.n)
        plane = prod(problem.output_shape[2:]) * ITEM_BYTES[problem.dtype]
        near = problem.tensor_bytes <= access.machine.l2 or channels <= TLB_PAGES
        if problem.data_format == "NXC" or plane < PAGE_BYTES or near:
            return 0.0
        tiles = inner_extents(self._extents, self.partitions.tiles)[-1]
        run = ITEM_BYTES[problem.dtype] * access.tile.positions * tiles
        whole_lines = plane % CACHE_LINE == 0 and run % CACHE_LINE == 0
        if tiles == self._extents[-1] or run >= SHORT_RUN or whole_lines:
            return 0.0
        return RUN_CYCLES * channels * access.tile.rows * self.partitions.work_items

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
        wanted = -(-WORK_ITEMS // self.partitions.work_items)
        if not self._has_small_images:
            return wanted
        wanted = max(wanted, groups * self._image // room)
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
        return -(-WORK_ITEMS // (self.partitions.work_items * group_partitions))

    def may_pack_by_work_item(self, n_partitions: int) -> bool:
        """Whether each work item may pack its own data, so that it need not be packed before all of them."""
        return n_partitions <= REPACKS and self._padding <= SURPLUS and self._may_pack_again(self.partitions.surplus)

    @property
    def packed(self) -> float:
        """How often the data is packed: by each partition of positions and N that reads it, or once before all."""
        sizes, tile = self.access.sizes, self.access.tile
        group_partitions = nearest_divisor(sizes.group_blocks(tile), self.group_partitions)
        n_partitions = nearest_divisor(sizes.n_blocks(tile), self.n_partitions(group_partitions))
        return self.partitions.surplus * n_partitions if self.may_pack_by_work_item(n_partitions) else 1.0

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

    def has_room(self, partitions: Partitions) -> bool:
        """Whether the packed filter and a work item's packed data take no more memory than the tensors. A work item
        that shares its panels with no other one packs them one at a time, so then only one panel counts."""
        access, sizes = self.access, self.access.sizes
        if access.filter_in_place:
            return True
        data = 0 if access.data_in_place else partitions.read * sizes.k
        alone = access.panel > 0 and partitions.work_items == 1 and not access.filter_fits_half_l2
        return access.has_room((access.panel if alone else prod(sizes.problem.filter_shape)) + data)

    def _partition(self, extents: Sequence[int], inner: Sequence[int]) -> Partitions:
        """The partitions of `inner` images and tiles along each axis, of `extents` in all, and their traffic."""
        access, sizes = self.access, self.access.sizes
        read, work_items = self._read(inner), prod(extents) // prod(inner)
        surplus = work_items * read / self._read(extents)
        packed = 1.0 if access.data_in_place else surplus
        once_each = access.may_pipeline and access.data_in_place
        times = 1 if once_each or self._stays(inner, read, work_items) else max(sizes.n_blocks(access.tile), 2)
        few = work_items * sizes.group_blocks(access.tile) < WORK_ITEMS
        if not access.data_in_place and (few or not self._may_pack_again(surplus)):
            packed, times = 1.0, times + 2  # packed before all work items: written to memory and read from there
        data, filter_ = (access.bytes * prod(shape) for shape in sizes.problem.input_shapes)
        again = 0.0 if access.filter_fits_half_l2 else NEAR if filter_ <= access.machine.l3 else 1.0
        once = 1 if work_items == 1 or access.filter_fits_half_l2 else 3  # read, written as panels, and read
        traffic = data * packed * times + filter_ * (once + again * (work_items - 1))
        return Partitions(prod(inner), work_items, surplus, traffic, read)

    def _stays(self, inner: Sequence[int], read: int, work_items: int) -> bool:
        """Whether the data that a partition of `inner` images and tiles reads stays in L2: of all K, or of one cache
        block; in NCX beside the scratch accumulator. VGG-19's conv4_1 and conv4_2, whose accumulator does not fit, took
        1.1 times as long in one partition (an Intel Xeon with AMX). It makes no such difference to 16-bit results in
        NXC: with it, DeepLab's block4_expand in bf16 took 1.03 and U-Net's down4_2 0.97 times as long."""
        access, sizes = self.access, self.access.sizes
        together = 1 if self._has_small_images else sizes.problem.geometry.groups
        k_cache_blocks = access.k_cache_blocks if access.may_block_k else 1  # one after the other
        held = access.bytes * read * together * sizes.k // k_cache_blocks
        if access.has_scratch_accumulator(k_cache_blocks) and not access.has_contiguous_vectors:
            blocks = -(-sizes.n_blocks(access.tile) * work_items // WORK_ITEMS)
            positions = inner[0] * prod(access.tile.covered(inner[1:]))
            held += F32_BYTES * positions * blocks * access.tile.n
        return held <= (
            access.machine.l2 if self._reads_panels_once(work_items, k_cache_blocks) else access.machine.l2_blocks
        )

    def _reads_panels_once(self, work_items: int, k_cache_blocks: int) -> bool:
        """Whether there is a single partition in NCX, with all of K and one tap, whose panels come from beyond L2: it
        reads each only once, which pays even if its data fills L2. On an Intel Xeon with 2 MiB of L2 ConvNeXt's
        stage4_project, DeepLab's block4_reduce and ResNet-50's res5a_branch2a and res5b_branch2a took 0.75 to 0.90 of
        the time. It does not pay in NXC (res4b_branch2a took 1.13 times as long), with several cache blocks of K
        (ConvNeXt's stage4_expand, 1.21), several output phases (stage4_halve, 1.04) or taps (DeepLab's block4_dilated2,
        1.03), or for a filter that L2 holds (MobileNetV2's block7_project, 1.04)."""
        access, sizes = self.access, self.access.sizes
        transposes = access.tile.vector_axis is DataAxis.N and not access.has_contiguous_vectors
        far = access.bytes * prod(sizes.problem.input_shapes[1]) >= access.machine.l2
        one_tap = [(size.n, size.products) for size in sizes.sums] == [(sizes.n, sizes.k)]
        return transposes and far and one_tap and work_items == k_cache_blocks == 1

    @cached_property
    def _extents(self) -> list[int]:
        """Images and tiles along each axis of the largest sum."""
        return max(self.access.sizes.m_blocks(self.access.tile), key=prod)

    def _read(self, extents: Sequence[int]) -> int:
        """Elements of a channel that a partition of so many images and tiles along each axis reads."""
        images, *blocks = extents
        covered = self.access.tile.covered(blocks)
        axes = zip(covered, self.access.sizes.read_strides, self.access.sizes.halo)
        return images * prod(size * step + halo for size, step, halo in axes)

    @property
    def _padding(self) -> float:
        """The data with all its padding, as a multiple of what is packed before all work items, where the outer axes'
        padding is implicit. Work items pack all of it: of DeepLab's aspp_dilated18 and aspp_dilated12, 2.7 and 2.1
        times as much; they took 2.1 and 1.5 times as long (an Intel Xeon with AMX)."""
        sizes, access = self.access.sizes, self.access
        channels = sizes.problem.geometry.groups * sizes.k
        before = sizes.packed(access.blocking(in_place=False, implicit_axes=access.implicit_axes))
        return self._read(self._extents) * channels / before

    def _may_pack_again(self, surplus: float) -> bool:
        """Whether partitions may together pack `surplus` times the data."""
        return surplus <= SURPLUS or self._shares_rows

    @cached_property
    def _has_small_images(self) -> bool:
        """Whether a work item takes whole images of some groups: in depthwise layers with vectors over positions groups
        share no data, and the image of one fits half of L2."""
        sizes = self.access.sizes
        by_rows = self.access.tile.vector_axis is DataAxis.M and sizes.problem.data_format == "NCX"
        return by_rows and sizes.is_depthwise and self._image <= self.access.machine.l2_blocks // 2

    @property
    def _image(self) -> int:
        """Bytes of an image's data, of one group."""
        return F32_BYTES * self.access.sizes.k * self._read([1, *self._extents[1:]])

    @property
    def _shares_rows(self) -> bool:
        """Whether output phases of a depthwise gradient write to the same rows, one after the other. What they write,
        several times what they read, should stay in L2 until the last phase has written."""
        sizes = self.access.sizes
        return self.access.tile.vector_axis is DataAxis.GROUPS and len(sizes.sums) > 1 and sizes.k == 1

    @property
    def _most_tiles(self) -> int:
        """The most tiles along positions that a partition may have."""
        if not self._shares_rows:
            return 1 << 62
        sizes, tile = self.access.sizes, self.access.tile
        channels = sizes.problem.geometry.groups * sum(size.n for size in sizes.sums)
        m_block = F32_BYTES * tile.rows * tile.positions * channels
        return max(self.access.machine.l2_blocks // 2 // m_block, 1)
