"""How a register tile's positions are split into partitions, each of which is the work of one item, or of several.

More partitions read the panels, and the data at their borders, more often; larger ones need more cache. The best ones
bring the least data from beyond L2, and give enough work items for many cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, PAGE_BYTES
from tvmconvgrad.schedules.cpu.data.access import TLB_PAGES, DataAccess
from tvmconvgrad.schedules.cpu.data.sizes import WORK_ITEMS, DataAxis
from tvmconvgrad.schedules.cpu.data.tiles import cost
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.spec.dtypes import ITEM_BYTES

NEAR = 0.1
"""What a byte of contiguous panels costs from the last-level cache, as a share of what it costs from memory. With half
of it 8 sums change, and take 1.01 times as long; with twice, 9 and 0.99 (benchmarks/constants.py)."""

SURPLUS = 2
"""Work items may together pack so many times the data (neighbours share some); if they would pack more, the data is
packed once before all work items, which takes it through memory. With half of it 40 sums change, and take 1.07 times as
long; with twice, 2 and 1.04 (benchmarks/constants.py)."""

SHORT_RUN, RUN_CYCLES = 1024, 170
"""Where planes of NCX take a page or more, a work item's part of a row begins with a miss of the TLB, and with lines
that a core's own prefetcher does not know yet. If it begins within a cache line, two work items write that. Such parts
with fewer bytes than the first number cost so many cycles each. WaveNet's dilated1 and causal (data), whose rows of
16001 positions split badly, had parts of 504 and 384 bytes. With another tile, and causal with another rule, they were
1.73 and 1.38 times as fast, and 128 to 32 channels 1x1 on 101 x 101 positions 2.9 times (data). Parts of 384 bytes that
are whole lines were fast: with longer ones 64 and 128 channels to 8 and 64 on 97 x 96 positions took 1.15 to 1.6 times
as long (an Intel Xeon with AMX)."""

FEWER = 0.5
"""For so much of the cost of the rest, half as many work items are enough. On one thread WaveNet's causal (data) in
bf16 took 0.18 to 0.49 of the time with 7 parts of each row in place of 77, and dilated1 0.57 to 1.01 (five runs). Their
short parts cost 0.8 and 0.97 of the rest. By vectors causal took 1.09 times as long in f32, and 1.02 in f16 (an Intel
Xeon with AMX)."""

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


@dataclass(frozen=True)
class PositionPartitioning:
    """Splits the positions of a tile's sums."""

    access: DataAccess

    @property
    def partitions(self) -> Partitions:
        """The best ones that give enough work items."""
        return self._chosen[0]

    @property
    def enough_work_items(self) -> int:
        """The least number of work items that the sums should have."""
        return self._chosen[1]

    @property
    def restarting(self) -> float:
        """Cycles of one core, about, that short parts of rows cost, of data and result."""
        return self._restarting(self.partitions)

    @cached_property
    def _chosen(self) -> tuple[Partitions, int]:
        """The best partitions, and how many work items are enough. In tile registers half of `WORK_ITEMS` are, if that
        spares short parts of rows that cost at least `FEWER` of the rest."""
        found = self._best(WORK_ITEMS)
        if self.access.tile.tile_rows and self._restarting(found) >= FEWER * cost(self.access):
            fewer = self._best(WORK_ITEMS // 2)
            if not self._restarting(fewer):
                return fewer, WORK_ITEMS // 2
        return found, WORK_ITEMS

    def _restarting(self, partitions: Partitions) -> float:
        """Cycles that short parts of rows cost these partitions: none where L2 holds all, nor where L1's TLB still
        knows the page of each channel when the next part begins."""
        access, problem = self.access, self.access.sizes.problem
        channels = problem.geometry.groups * (access.sizes.k + access.sizes.n)
        plane = prod(problem.output_shape[2:]) * ITEM_BYTES[problem.dtype]
        near = problem.tensor_bytes <= access.machine.l2 or channels <= TLB_PAGES
        if problem.data_format == "NXC" or plane < PAGE_BYTES or near or not access.sizes.sums:
            return 0.0
        tiles = inner_extents(self.extents, partitions.tiles)[-1]
        run = ITEM_BYTES[problem.dtype] * access.tile.positions * tiles
        whole_lines = plane % CACHE_LINE == 0 and run % CACHE_LINE == 0
        if tiles == self.extents[-1] or run >= SHORT_RUN or whole_lines:
            return 0.0
        return RUN_CYCLES * channels * access.tile.rows * partitions.work_items

    def _best(self, enough: int) -> Partitions:
        """The partitions with about the least traffic from beyond L2 among those that have room; of these, the largest
        that give enough work items.

        A partition reads every panel, and reads its data once for every N block, from the cache that holds them; once
        for all where the N blocks of a tile follow each other. Panels that several partitions share are packed to
        memory before, and read from there.
        """
        sizes, tile = self.access.sizes, self.access.tile
        if not sizes.sums:
            return Partitions(1, 1, 1.0, 0.0, 0)
        extents = self.extents
        if self.has_small_images:
            return self._partition(extents, [1, *extents[1:]], enough)
        most = min(prod(extents), self._most_tiles)
        limits = {most // part for part in range(1, min(most, 8 * WORK_ITEMS) + 1)}
        inners = {tuple(inner_extents(extents, limit)) for limit in limits}
        found = [self._partition(extents, inner, enough) for inner in sorted(inners)]
        # Panels take the least memory if a single work item packs its own. Without panels it is the packed data that
        # takes memory, and smaller partitions pack less of it at a time.
        smallest = (
            self._partition(extents, extents, enough)
            if self.access.panel
            else min(found, key=lambda partitions: partitions.read)
        )
        found = [partitions for partitions in found if self._has_room(partitions)] or [smallest]
        least = min(partitions.traffic for partitions in found)
        slack = SLACK * cost(self.access) / self.access.machine.memory_cycles_per_byte
        allowed = max(MORE_TRAFFIC * least, least + slack)
        best = [partitions for partitions in found if partitions.traffic <= allowed]
        fine = [partitions for partitions in best if partitions.work_items * sizes.group_blocks(tile) >= enough]
        return max(fine, key=lambda r: r.tiles) if fine else min(best, key=lambda r: r.tiles)

    def _has_room(self, partitions: Partitions) -> bool:
        """Whether the packed filter and a work item's packed data take no more memory than the tensors. A work item
        that shares its panels with no other one packs them one at a time, so then only one panel counts."""
        access, sizes = self.access, self.access.sizes
        if access.filter_in_place:
            return True
        data = 0 if access.data_in_place else partitions.read * sizes.k
        alone = access.panel > 0 and partitions.work_items == 1 and not access.filter_fits_half_l2
        return access.has_room((access.panel if alone else prod(sizes.problem.filter_shape)) + data)

    def _partition(self, extents: Sequence[int], inner: Sequence[int], enough: int) -> Partitions:
        """The partitions of `inner` images and tiles along each axis, of `extents` in all, and their traffic, if
        `enough` work items are wanted."""
        access, sizes = self.access, self.access.sizes
        read, work_items = self.read(inner), prod(extents) // prod(inner)
        surplus = work_items * read / self.read(extents)
        packed = 1.0 if access.data_in_place else surplus
        once_each = access.may_pipeline and access.data_in_place
        times = 1 if once_each or self._stays(inner, read, work_items, enough) else max(sizes.n_blocks(access.tile), 2)
        few = work_items * sizes.group_blocks(access.tile) < enough
        if not access.data_in_place and (few or not self.may_pack_again(surplus)):
            packed, times = 1.0, times + 2  # packed before all work items: written to memory and read from there
        data, filter_ = (access.bytes * prod(shape) for shape in sizes.problem.input_shapes)
        again = 0.0 if access.filter_fits_half_l2 else NEAR if filter_ <= access.machine.l3 else 1.0
        once = 1 if work_items == 1 or access.filter_fits_half_l2 else 3  # read, written as panels, and read
        traffic = data * packed * times + filter_ * (once + again * (work_items - 1))
        return Partitions(prod(inner), work_items, surplus, traffic, read)

    def _stays(self, inner: Sequence[int], read: int, work_items: int, enough: int) -> bool:
        """Whether the data that a partition of `inner` images and tiles reads stays in L2: of all K, or of one cache
        block; in NCX beside the scratch accumulator. VGG-19's conv4_1 and conv4_2, whose accumulator does not fit, took
        1.1 times as long in one partition (an Intel Xeon with AMX). It makes no such difference to 16-bit results in
        NXC: with it, DeepLab's block4_expand in bf16 took 1.03 and U-Net's down4_2 0.97 times as long."""
        access, sizes = self.access, self.access.sizes
        together = 1 if self.has_small_images else sizes.problem.geometry.groups
        k_cache_blocks = access.k_cache_blocks if access.may_block_k else 1  # one after the other
        held = access.bytes * read * together * sizes.k // k_cache_blocks
        if access.has_scratch_accumulator(k_cache_blocks) and not access.has_contiguous_vectors:
            blocks = -(-sizes.n_blocks(access.tile) * work_items // enough)
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
    def extents(self) -> list[int]:
        """Images and tiles along each axis of the largest sum."""
        return max(self.access.sizes.m_blocks(self.access.tile), key=prod)

    def read(self, extents: Sequence[int]) -> int:
        """Elements of a channel that a partition of so many images and tiles along each axis reads."""
        images, *blocks = extents
        covered = self.access.tile.covered(blocks)
        axes = zip(covered, self.access.sizes.read_strides, self.access.sizes.halo)
        return images * prod(size * step + halo for size, step, halo in axes)

    def may_pack_again(self, surplus: float) -> bool:
        """Whether partitions may together pack `surplus` times the data."""
        return surplus <= SURPLUS or self._shares_rows

    @cached_property
    def has_small_images(self) -> bool:
        """Whether a work item takes whole images of some groups: in depthwise layers with vectors over positions groups
        share no data, and the image of one fits half of L2."""
        sizes = self.access.sizes
        by_rows = self.access.tile.vector_axis is DataAxis.M and sizes.problem.data_format == "NCX"
        return by_rows and sizes.is_depthwise and self.image <= self.access.machine.l2_blocks // 2

    @property
    def image(self) -> int:
        """Bytes of an image's data, of one group."""
        return F32_BYTES * self.access.sizes.k * self.read([1, *self.extents[1:]])

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
