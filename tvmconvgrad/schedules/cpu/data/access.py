"""What a register tile reads and writes: beside its operands, panels of the filter, and how many cache blocks of K it
adds up.

Writing a result against the memory's order (results.py) costs even more than packing an operand (operands.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from tvmconvgrad.machines.cpu import F32_BYTES, PAGE_BYTES
from tvmconvgrad.schedules.cpu.costs import workspace_room
from tvmconvgrad.schedules.cpu.data.operands import DataOperands
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis
from tvmconvgrad.tir.passes.limits import LEAST_SIDE

PANEL, SMALL_PANEL = 0.6, 0.125
"""The share of L2 that a panel may take; the second one for a panel that would be read faster than L2 delivers
(`CpuMachine.l2_bytes_per_cycle`). Sums that change with half and with twice, and their times beside today's: PANEL 13,
1.01 and 10, 0.99; SMALL_PANEL 1, 1.15 and 2, 1.02 (benchmarks/constants.py). Where cache blocks of K are added up in
the result itself, a panel takes L1 at most: 11 forwards of ResNet-50, VGG-19 and others had 1.04 times the speed in the
mean, none below 0.99 (an Intel Xeon with AMX). Not so where such a panel fills all of L1, so that data displaces it,
and L2 has room for the whole panel and delivers twice what is read: 73 gradients and forwards took 0.994 of the time
then, 3D U-Net's up1 (data) 0.62 (an AMD EPYC with Zen 4)."""

TLB_PAGES = 64
"""The pages that L1's TLB knows: 64 to 96 on today's CPUs. Where cache blocks of K are added to results in more pages,
a panel may take its share of L2, too: DCGAN's judge4 (data) and draw2 (forward) took 0.92 of the time, three others as
long as before (an AMD EPYC with Zen 4)."""


@dataclass(frozen=True)
class DataAccess(DataOperands):
    """What a register tile reads and writes, for sums of these sizes on a machine."""

    @cached_property
    def panel(self) -> int:
        """Elements of a panel that a work item packs; 0 if the filter is read in place."""
        if self.tile.vector_axis is not DataAxis.N or self.filter_in_place:
            return 0
        products = max((size.products for size in self.sizes.sums), default=0)
        return products * self.tile.n // (self.k_cache_blocks if self.may_block_k else 1)

    @cached_property
    def has_panels(self) -> bool:
        """Whether the workspace may have room for panels: for all of them, or for one beside all packed data.

        A panel that fits L1 is always allowed: avoiding it, by a narrower tile, would save little.
        """
        data, weights = (prod(shape) for shape in self.sizes.problem.input_shapes)
        alone = self.panel + (0 if self.data_in_place else data)
        return self.bytes * self.panel <= self.machine.l1_blocks or self.has_room(min(alone, weights))

    def has_room(self, elements: int) -> bool:
        """Whether a workspace of so many packed elements takes no more memory than the tensors."""
        return self.bytes * elements <= workspace_room(self.sizes.problem)

    # ---- cache blocks of K ----

    @cached_property
    def may_block_k(self) -> bool:
        """Whether K may have several cache blocks, which are added up in memory: tiles are contiguous in the result, or
        its rows are long enough to be transposed."""
        if self.tile.vector_axis is not DataAxis.N:
            return False
        if self.has_contiguous_vectors:
            return self.writes_whole_lines
        return all(size.positions[-1] >= LEAST_SIDE and size.n % self.tile.n == 0 for size in self.sizes.sums)

    def has_scratch_accumulator(self, k_cache_blocks: int) -> bool:
        """Whether so many cache blocks of K are added up in a scratch accumulator, since the result has another order
        or type."""
        return k_cache_blocks > 1 and not (self.has_contiguous_vectors and self.sizes.problem.output_dtype == "f32")

    def vector_rate(self, rows: int) -> float:
        """Bytes of vectors that a tile of so many rows reads in a cycle, if its FMAs do not wait."""
        return self.machine.fmas * F32_BYTES * self.machine.lanes / rows

    @cached_property
    def k_cache_blocks(self) -> int:
        """The number of cache blocks of K for which a panel fits its share of a cache, beside data."""
        return -(-self._whole_panel // self._panel_room)

    @property
    def planned_k_cache_blocks(self) -> int:
        """The number of cache blocks of K that a plan has: those by which its tile was chosen. If they need a scratch
        accumulator, and L2 does not deliver twice what the tile reads, so many that a panel fits L1, or as many as
        there are: adding more of them up costs less than waiting for L2. ConvNeXt's stage4_expand and ResNeXt's
        conv5a_expand in NCX took 0.88 and 0.85 of the time (an AMD EPYC with Zen 5)."""
        found = self.k_cache_blocks
        streams = 2 * self.vector_rate(self.tile.positions) <= self.machine.l2_bytes_per_cycle
        if streams or not self.has_scratch_accumulator(found):
            return found
        return max(ceil(self._whole_panel * self.sizes.density(self.tile) / self.machine.l1_blocks), found)

    @property
    def _whole_panel(self) -> int:
        """Bytes of a panel if K has one cache block."""
        return self.bytes * max((size.products for size in self.sizes.sums), default=1) * self.tile.n

    @property
    def _panel_room(self) -> int:
        """Bytes that a panel may take. A result that is written by non-temporal stores is not in the caches to
        be added to, so K is split for it only if a panel would be too large for L2."""
        rate, l2_rate = self.vector_rate(self.tile.positions), self.machine.l2_bytes_per_cycle
        room = int((SMALL_PANEL if self.may_block_k and rate > l2_rate else PANEL) * self.machine.l2_blocks)
        if not self.may_block_k or self.has_scratch_accumulator(k_cache_blocks=2) or self.stores_non_temporally:
            return room
        has_room_beside = self.machine.l1 > self.machine.l1_blocks
        streams = 2 * rate <= l2_rate and (self._whole_panel <= room or self._adds_far_apart)
        return room if streams and not has_room_beside else self.machine.l1_blocks

    @property
    def _adds_far_apart(self) -> bool:
        """Whether cache blocks of K are added to results that lie a page or more apart, at more positions than the TLB
        of L1 knows pages. The positions are those of all work items, which are not known yet."""
        sizes, geometry = self.sizes, self.sizes.problem.geometry
        positions = geometry.batch * max((prod(size.positions) for size in sizes.sums), default=0)
        return F32_BYTES * self.result_stride * sizes.problem.output_shape[-1] >= PAGE_BYTES and positions > TLB_PAGES
