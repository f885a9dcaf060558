"""Data gradients and forward convolutions on CPUs: an implicit GEMM C[M, N] = A[M, K] * B[K, N] for each group.

Pattern. C is the result, A the data, B the filter. M are the positions of all images, N the channels of the result, K
the taps and the channels of the data. A strided data gradient is one such GEMM for each combination of its output
phases (te/data_gradient.py).

Loop nest. A work item is a partition of positions, groups and N; a block of M is a run along the last axis:

    parallel work item (partition of positions, of groups, of N)
      for cache block of K, group block, N block:
        panel = filter[taps, cache block, N block]          # packed before the work items, or here
        for image, position outside the last axis, M block:
          for summation block of K:
            tile = 0                                        # micro-kernel: M block x N block, in registers
            for K block, tap, k: tile += data[M block + tap, k] * panel[tap, k, N block]
            sum += tile                                     # on the stack; there is one block unless K is long
          result[M block, N block] += sum                   # epilogue

Where tiles with vectors over positions read their data in place, the loop over N blocks is inside of those over M.

Why it is fast.
1. A panel is packed in the order in which it is read; where taps are innermost in the filter, those of all output
   phases as one run (`DataSizes.phases_of_one_run`). It stays in L1 for a partition of positions, and the partition's
   data of that cache block of K in L2, where it fits.
2. K is split into cache blocks so short that a panel fits L1. A panel may take a share of L2 instead (`PANEL` in
   access.py), so that K has few cache blocks, in three cases:
   - a result in 16 bits or in NCX, which would be added up in an f32 scratch accumulator and converted at the end; but
     if K has several cache blocks all the same, and L2 does not deliver twice what a tile reads, panels fit L1
   - a result that is written by non-temporal stores
   - a panel that would fill all of L1, if L2 delivers twice what a tile reads, and either has room for all of K, or
     results lie a page apart at more positions than L1's TLB knows.
3. Data is read in place if it needs neither padding nor conversion, and its rows cause no conflict misses; that of
   depthwise layers also with padding: in NCX by masked loads (masked.py), in NXC by conditions that leave out its
   products, with a row's first and last tile apart from the others; and that of which a single N block is made, with
   vectors over N, where all padding is left out (4). Depthwise data (in NXC that of a single sum of two
   or three axes), and data with vectors over N, is prefetched (transforms/prefetch.py). With vectors over positions all
   N blocks of a tile follow each other, so its data stays in L1 or L2, and that of the next tiles is prefetched
   meanwhile (transforms/software_pipelining.py): its rows lie far apart, so a core's own prefetcher does not follow
   them. MobileNetV2's block3_expand, block4_expand and block2_expand in NCX became 1.7, 1.5 and 1.5 times as fast
   (data, an AMD EPYC with Zen 5). With vectors over N and a single tap, elements are broadcast from NCX where they lie,
   too, and what is read next is prefetched: block5_expand became 1.13 times as fast. Other data is packed, by each work
   item or before all of them; what a work item packs next is prefetched likewise.
4. A tap at which a tile reads nothing but padding is left out (transforms/padding_elision.py), but not along the last
   two axes where masked loads read data in place. With vectors over N, padding along the last axis is left out position
   by position, where few copies of the sums suffice (sum_axis.py): of rows of 7 and 14 positions and three taps, 0.095
   and 0.048 of the products.
5. A result that is larger than a core's share of L3 is written by non-temporal stores, if tiles fill whole cache lines
   (tir/passes/non_temporal.py). Tiles of a strided depthwise gradient in NCX do not, but a work item's channels do
   together: they are staged in the core's caches, and then copied (tir/passes/staging.py). MobileNetV2's
   block2_depthwise and block3_depthwise took 0.65 and 0.86 of the time (an AMD EPYC with Zen 4). Depthwise results stay
   in L3 if all tensors fit the share.
6. Output phases with the same number of work items are fused: a work item packs its data once for all of them
   (transforms/task_fusion.py).
7. Where a CPU's instruction for two bf16 products is faster than two FMAs (`CpuMachine.takes_pairs`), bf16 operands
   keep their 16 bits, and it adds the products of two channels of K (tir/passes/pairs.py). Panels have these two side
   by side. This holds for vectors over N, over groups of 8 or more channels of K, and over positions in NCX that read
   neighbours.
8. On AArch64 a row's operand is an element of a vector: no instruction broadcasts it, which would take the place of an
   FMA. Where registers allow, an iteration of the innermost loop takes four steps along K.
9. With AVX2 sums of 3 positions x 4 vectors of channels take all registers but four: three hold the positions'
   operands, and the vectors of channels pass through the last one (`holds_rows` in micro_kernel.py). 3D U-Net's up1_1
   and down1_2, whose rows of 32 positions took 2 x 4, became 1.14 and 1.13 times as fast (data, an AMD EPYC with
   Zen 5).
10. Long sums are added up in blocks (summation.py): rounding errors of 2304 products in one chain were twice XLA's.
11. On CPUs with AMX_BF16 there is a second micro-kernel for bf16: M block x N block are tiles of 16 x 16 sums in tile
    registers, K blocks are 32 channels, and an instruction adds 8192 products (tir/passes/tiles.py). Its sums go
    through an array on the stack to the epilogue, which stays the same. Of few channels an instruction adds up several
    taps, and in NCX neither data nor results of 1x1 layers are transposed (tile_registers.py).
12. Where no tap moves along the last axes, as in a 7x1 convolution, rows become one long row if that costs clearly less
    (spec/reducing/merging.py). Rows of 17 positions took two tiles of 9 rows each: Inception's 7x1 layers became 1.2 to
    1.5 times as fast in bf16 (an Intel Xeon with AMX).

There is one rule for each vectorised axis, beside two in tile registers: N; the groups, which is fast where a group has
few channels; the positions, for NCX; and K, where its channels are contiguous in data and filter. With vectors over K
the filter is not packed, which pays for large filters that few positions use, and the lanes of a tile's vectors are
added up at the end. With vectors over groups, a tile is transposed in registers if that makes the channels of a group
contiguous. Otherwise it prefetches the lines that it will write, and depthwise sums in NCX those of later tiles, unless
they are written by non-temporal stores.
Depthwise sums that memory bounds take several group blocks at each M block before they go on to the next one, so that
they write whole runs of lines.

Not done: no zeros are inserted between the elements of a strided gradient, since each would be multiplied. K is not
split over work items (split-K): positions give enough of them, and partial sums would go through memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.s_tir import Schedule

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import tile_registers
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.data import masked
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.epilogue import convert_scratch, transpose_tile, write_tile
from tvmconvgrad.schedules.cpu.data.nest import nest_sum
from tvmconvgrad.schedules.cpu.data.partition import DataPartitioning
from tvmconvgrad.schedules.cpu.data.plan import DataPlan, DataPlanner
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, sizes_of
from tvmconvgrad.schedules.cpu.data.tile_registers import adds_taps
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.cpu.packing.data import DataBlocks, pack_data
from tvmconvgrad.schedules.cpu.packing.filter import FilterPanels, pack_filter
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.schedules.transforms.padding_elision import elide_padding, elide_pads_in_place
from tvmconvgrad.schedules.transforms.prefetch import prefetch_reads, prefetch_results
from tvmconvgrad.schedules.transforms.software_pipelining import pipeline_packing, pipeline_reading
from tvmconvgrad.schedules.transforms.task_fusion import fuse_tasks
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.reducing import forms
from tvmconvgrad.te import Expression
from tvmconvgrad.tir.annotations import STAGED


@dataclass(frozen=True)
class DataRule(PlannedRule[DataPlanner]):
    """Data gradients and forward convolutions with vectors over `vector_axis`."""

    gradients = frozenset({Gradient.DATA, Gradient.FORWARD})
    machine: CpuMachine
    vector_axis: DataAxis
    in_tile_registers: bool = False
    """Whether sums stay in AMX's tile registers; vectors then only write them."""

    @property
    def name(self) -> str:
        """`data-` and the vectorised axis; in tile registers `data-tiles`, or, where rows are channels and columns
        positions, `data-tiles-positions`."""
        if not self.in_tile_registers:
            return f"data-{self.vector_axis.value}"
        return "data-tiles" if self.vector_axis is DataAxis.N else f"data-tiles-{self.vector_axis.value}"

    @property
    def opt_level(self) -> int:
        """LLVM's level. With vectors over groups or positions, 2 leaves loops over taps that 3 unrolls: DCGAN's judge1
        (data) took 1.9 times as long, ConvNeXt's depthwise layers 1.2 times. With the others 263 gradients and forwards
        took as long with 2 as with 3 (an AMD EPYC with Zen 4). In tile registers it was not measured."""
        return 2 if self.vector_axis in (DataAxis.N, DataAxis.K) and not self.in_tile_registers else 3

    def forms(self, problem: Problem) -> tuple[Problem, ...]:
        """A filter that moves along the first axes alone, as of 7x1, may have long rows."""
        return forms(problem)

    def planner(self, problem: Problem) -> DataPlanner:
        """The planner of one vectorised axis."""
        return DataPlanner(self.machine, self.vector_axis, sizes_of(problem), self.in_tile_registers)

    def program(self, problem: Problem, planner: DataPlanner, plan: DataPlan) -> tuple[Expression, IRModule]:
        """Nest the sums, pack data and filter, then fuse, prefetch, elide padding and map the results."""
        access = planner.access(plan.tile)
        of_places = {Packs.BEFORE: access.implicit_axes, Packs.IN_PLACE: access.implicit_axes_in_place}
        implicit_axes = of_places.get(plan.packs, 0)
        blocking = planner.sizes.blocking(plan.tile, plan.block_k, implicit_axes, access.pairs)
        blocking = replace(blocking, last_reversed=adds_taps(access))
        if access.has_scratch_accumulator(plan.k_cache_blocks):
            blocking = replace(blocking, result_position=_written_positions(access, plan))
        else:
            blocking = replace(blocking, in_place=plan.k_cache_blocks > 1)
        expression = express(problem, blocking)
        sch = Schedule(expression.prim_func())
        self._schedule_sums(sch, problem, expression, plan, access)
        schedule_zeros_and_bias(sch, expression)
        sch = Schedule(fuse_tasks(sch.mod, expression.sums))
        in_place = plan.packs is Packs.IN_PLACE
        if not in_place:
            self._pack(sch, problem, expression, plan, access)
        elif not implicit_axes:
            sch.compute_inline(sch.get_sblock(expression.operands[0]))
        # Masks stand for padding along the last two axes.
        eliding = replace(expression, views=expression.views[:-2]) if access.masks_data else expression
        module = elide_padding(sch.mod, eliding)
        if in_place and implicit_axes:  # all conditions for its padding are set
            module = _inlined(module, expression.operands[0])
        module = prefetch_reads(module, {expression.inputs[0].op.name: _ahead(access, plan)})
        if in_place and access.leaves_out_padding:
            module = elide_pads_in_place(module, expression.inputs[0].op.name)
        if plan.tile.groups == 1:
            where = [plan.packs, *[plan.packs_filter] * len(expression.operands[1:])]
            module = pipeline_packing(
                module, [name for name, each in zip(expression.operands, where) if each is Packs.WORK_ITEM]
            )
        if in_place:
            module = pipeline_reading(module, expression.inputs[0].op.name)
        module = apply_output_maps(module, expression, problem)
        if self.vector_axis is DataAxis.GROUPS and not access.transposes_result and not plan.non_temporal:
            module = prefetch_results(module)
        if access.masks_data and not plan.non_temporal:
            module = masked.prefetch_planes(module, access.sizes, expression)
        return expression, module

    def _schedule_sums(
        self, sch: Schedule, problem: Problem, expression: Expression, plan: DataPlan, access: DataAccess
    ) -> None:
        rank, tile = problem.geometry.rank, plan.tile
        results = expression.sum_results
        nests = [nest_sum(sch, sch.get_sblock(name), rank, plan, access) for name in expression.sums]
        has_scratch = access.has_scratch_accumulator(plan.k_cache_blocks)
        for nest, result in zip(nests, results):
            if access.transposes_result and not has_scratch:
                transpose_tile(sch, nest.written, rank, tile, problem.data_format)
            else:
                write_tile(sch, nest.written, rank, plan, access)
            if has_scratch:
                convert_scratch(sch, sch.get_sblock(result.op.name), nest.work_items[-1], rank, access)
        for panel, nest in zip(map(sch.get_sblock, expression.operands[1:]), nests):
            if plan.packs_filter is not Packs.IN_PLACE:
                at = nest.packing if plan.packs_filter is Packs.WORK_ITEM else None
                packed = FilterPanels(access.sizes.n_axis, tile.n, plan.block_k, tile.groups, access.filter_run)
                pack_filter(sch, panel, packed, problem.filter_axes, at, access.phases_of_one_run)
            else:
                sch.compute_inline(panel)
        for nest in nests:
            work_item = sch.fuse(*nest.work_items)
            sch.parallel(work_item)
            if plan.non_temporal and access.may_stage_results:
                sch.annotate(work_item, STAGED, access.sizes.line)
            zeroed = sch.decompose_reduction(nest.tile, nest.reduction)
            if tile.tile_rows:
                tile_registers.zero(sch, zeroed, tile.tile_rows)

    def _pack(
        self, sch: Schedule, problem: Problem, expression: Expression, plan: DataPlan, access: DataAccess
    ) -> None:
        """Pack the data where the plan says; in a work item, once for all sums fused there."""
        data = sch.get_sblock(expression.operands[0])
        total = sch.get_consumers(data)[0]
        at = sch.get_loops(total)[0] if plan.packs is Packs.WORK_ITEM else None
        run = 2 if access.pairs and plan.tile.groups > 1 else 1
        channels = 2 if plan.tile.has_channel_rows else plan.block_k  # pairs, each of which is a row of a tile register
        packed = DataBlocks(channels, plan.tile.groups, run=run)
        pack_data(sch, data, problem.data_format, packed, self.machine.lanes, at)


def _inlined(module: IRModule, stage: str) -> IRModule:
    """The module whose sums read the tensor of a stage in place."""
    sch = Schedule(module)
    sch.compute_inline(sch.get_sblock(stage))
    return sch.mod


def _ahead(access: DataAccess, plan: DataPlan) -> tuple[int, ...]:
    """The prefetch distances along the last axes of the data: positions, or rows where padding is left out. The last
    taps are prefetched. In a forward they read the last rows; in a data gradient the first ones, so the distance grows
    by the rows that its taps span."""
    if not access.leaves_out_padding or not plan.prefetch:
        return plan.prefetch, 0
    *_, down, _ = access.sizes.sums[0].axes
    return plan.prefetch * down.stride + max(-down.step, 0) * (down.taps - 1), 0, 0


def _written_positions(access: DataAccess, plan: DataPlan) -> int:
    """The multiple that positions are rounded up to in a result that is converted from a scratch accumulator: 1 if work
    items write whole rows. Of parts of rows only the last one would be shorter, by a condition with which TVM does not
    see that a work item adds up what it writes."""
    return plan.tile.positions if DataPartitioning(access).splits_rows(plan.partition_tiles) else 1
