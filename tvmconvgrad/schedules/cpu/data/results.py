"""How a register tile writes its results: by whole cache lines, by rows, transposed, past the caches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import SHARED
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.spec import Gradient
from tvmconvgrad.tir.passes.limits import LEAST_SIDE


@dataclass(frozen=True)
class DataResults:
    """What a register tile writes, for sums of these sizes on a machine."""

    machine: CpuMachine
    sizes: DataSizes
    tile: DataTile

    @property
    def has_contiguous_vectors(self) -> bool:
        """Whether the tile's vectors are contiguous in the user's data and result."""
        return (self.sizes.problem.data_format == "NXC") != (self.tile.vector_axis is DataAxis.M)

    @property
    def result_stride(self) -> int:
        """The distance along the last axis between neighbouring results of one output phase."""
        problem = self.sizes.problem
        return problem.geometry.strides[-1] if problem.gradient is Gradient.DATA else 1

    @cached_property
    def transposes_result(self) -> bool:
        """Whether tiles are transposed in registers, to be written along positions (NCX) or along a group's channels
        (NXC); their surplus is left out (tir/passes/transposition/parts.py)."""
        tile = self.tile
        by_channels = self.sizes.problem.data_format == "NXC"
        if tile.vector_axis not in ((DataAxis.GROUPS,) if by_channels else (DataAxis.N, DataAxis.GROUPS)):
            return False
        lanes = tile.groups if tile.vector_axis is DataAxis.GROUPS else tile.n
        return min(tile.n if by_channels else tile.positions, lanes) >= LEAST_SIDE

    @property
    def writes_rows(self) -> bool:
        """Whether tiles are written by rows (tir/passes/rows.py): some vector may reach beyond the end of a row of the
        result, or of a position's channels."""
        sizes, tile = self.sizes, self.tile
        if tile.vector_axis is DataAxis.N:
            in_order = {size.n for size in sizes.sums} == {sizes.n}
            # of 16 bits also a stride apart: LLVM's own conditional store may write one element more
            by_rows = self.has_contiguous_vectors or sizes.problem.output_dtype != "f32"
            return by_rows and in_order and sizes.n % tile.n > 0
        if tile.vector_axis is not DataAxis.M:
            return False
        # With fewer channels in NXC several positions share a cache line, and LLVM's own code is as fast.
        cut = sizes.n >= LEAST_SIDE and any(size.positions[-1] % tile.positions for size in sizes.sums)
        return self.has_contiguous_vectors or cut

    @property
    def writes_whole_lines(self) -> bool:
        """Whether a tile's vectors are contiguous in the result and none reaches beyond its end."""
        sizes, tile, geometry = self.sizes, self.tile, self.sizes.problem.geometry
        if tile.vector_axis is DataAxis.GROUPS:
            return sizes.n == 1 and geometry.groups % tile.groups == 0
        if tile.vector_axis is DataAxis.M:
            return self.has_contiguous_vectors and self.result_stride == 1
        if geometry.groups > 1 and sizes.n * F32_BYTES % CACHE_LINE:
            return False  # groups share a cache line, which is fetched and written back for each of them
        vector = largest_divisor(tile.n, self.machine.lanes)
        return all(size.n % tile.n == 0 and (size.n == sizes.n or sizes.n % vector == 0) for size in sizes.sums)

    @property
    def may_store_non_temporally(self) -> bool:
        """Whether tiles may be written by non-temporal stores: each tile fills whole cache lines, which need not be
        read before."""
        tile, row = self.tile, self.sizes.problem.output_shape[-1]
        if (
            not self.machine.non_temporal
            or tile.vector_axis is DataAxis.K
            or not self.has_contiguous_vectors
            or not self.writes_whole_lines
        ):
            return False
        if not self.sizes.problem.may_bypass_caches:
            return False
        run = tile.positions if tile.vector_axis is DataAxis.M else tile.n * tile.groups
        return row % self.sizes.line == 0 and run % self.sizes.line == 0

    @property
    def may_stage_results(self) -> bool:
        """Whether results may be staged, for non-temporal stores to copy: the planes of depthwise gradients in NCX, in
        which output phases interleave. Other planes, with rows that begin within a cache line, took 1.0 to 1.25 times
        as long with it (MobileNetV2's block3b, block5b and block2b; an AMD EPYC with Zen 4). An element without
        products would be zeroed elsewhere, and then overwritten."""
        sizes, by_rows = self.sizes, self.tile.vector_axis is DataAxis.M
        planes = by_rows and sizes.is_depthwise and sizes.problem.data_format == "NCX" and self.result_stride > 1
        if not planes or not self.machine.non_temporal or not sizes.problem.may_bypass_caches:
            return False
        return sizes.fills_result and sizes.plane <= self.machine.l2_blocks

    @property
    def stores_non_temporally(self) -> bool:
        """Whether results are written by non-temporal stores unless a search says otherwise: if they are larger than
        a core's share of L3. A smaller one should stay in the cache for its reader.

        Depthwise sums are bound by memory. So their result stays in the cache as long as all tensors may, if each
        vector is a whole cache line; otherwise each line that is written in parts would be read from memory first. It
        stays, too, where output phases write parts of a line in any case: MobileNetV2's block4_depthwise (data, NCX) in
        bf16 and f16 took 0.85 and 0.64 of the time that it took with staged results (an Intel Xeon with AMX).
        """
        stays = self.sizes.is_depthwise and (self.machine.lanes >= self.sizes.line or self.may_stage_results)
        fits = self.sizes.problem.tensor_bytes <= SHARED * self.machine.l3
        able = self.may_store_non_temporally or self.may_stage_results
        return able and self.sizes.has_large_output(self.machine.l3) and not (stays and fits)
