"""Data gradients and forward convolutions on CPUs: an implicit GEMM C[M, N] = A[M, K] * B[K, N] for each group.

Pattern. C is the result, A the data, B the filter. M are the positions of all images, N the channels of the result, K
the taps and the channels of the data. A strided data gradient is one such GEMM for each combination of its output
phases (te/data_gradient.py).

Loop nest. A work item is a partition of positions, groups and N; a block of M is a run along the last axis:

    parallel work item (partition of positions, of groups, of N)
      for K-part, group block, N block:
        panel = filter[taps, K-part, N block]               # packed before the work items, or here
        for image, position outside the last axis, M block:
          tile = 0                                          # micro-kernel: M block x N block, in registers
          for K block, tap, k: tile += data[M block + tap, k] * panel[tap, k, N block]
          result[M block, N block] += tile                  # epilogue

Why it is fast.
1. A panel is packed in the order in which it is read. It stays in L1 for a partition of positions, and the partition's
   data of that K-part in L2, where it fits.
2. K has as many parts as that takes. A result in 16 bits or in NCX would be added up in an f32 scratch accumulator,
   which is converted at the end: there a panel may be as large as L2, and K mostly has one part. So it is with results
   that are written by non-temporal stores.
3. Data that needs neither padding nor conversion, and whose rows do not displace each other from L1, is read in place.
   With vectors over N it is prefetched (transforms/prefetch.py). Other data is packed, by each work item or before all
   of them; what a work item packs next is prefetched while products are added up (transforms/software_pipelining.py).
4. A tap at which a tile reads nothing but padding is left out (transforms/padding_elision.py).
5. A result that is larger than a core's share of L3 is written by non-temporal stores, if tiles fill whole cache lines
   (tir/passes/non_temporal.py).
6. Output phases with the same number of work items are fused: a work item packs its data once for all of them
   (transforms/task_fusion.py).
7. On CPUs with AVX512_BF16, or AArch64's BF16, bf16 operands keep their 16 bits, and an instruction adds the products
   of two channels of K (tir/passes/pairs.py). Panels have these two side by side. This holds for vectors over N, and
   over groups of 8 or more channels of K.
8. On AArch64 a row's operand is an element of a vector: no instruction broadcasts it, which would take the place of an
   FMA. Where registers allow, an iteration of the innermost loop takes four steps along K.
9. On CPUs with AMX_BF16 there is a second micro-kernel for bf16: M block x N block are tiles of 16 x 16 sums in tile
   registers, K blocks are 32 channels, and an instruction adds 8192 products (tir/passes/tiles.py). Its sums go through
   an array on the stack to the epilogue, which stays the same.

There is one rule for each vectorised axis: N; the groups, which is fast where a group has few channels; the positions,
for NCX; and K, where its channels are contiguous in data and filter. With vectors over K the filter is not packed,
which pays for large filters that few positions use, and the lanes of a tile's vectors are added up at the end. With
vectors over groups, a tile is transposed in registers if that makes the channels of a group contiguous. Otherwise it
prefetches the lines that it will write, unless it writes them by non-temporal stores. Depthwise sums that memory bounds
take several group blocks at each M block before they go on to the next one, so that they write whole runs of lines.

Not done: no zeros are inserted between the elements of a strided gradient, since each would be multiplied. K is not
split over work items (split-K): positions give enough of them, and partial sums would go through memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import Scheduled, numbers_of
from tvmconvgrad.schedules.cpu import blocks, packing, tile_registers
from tvmconvgrad.schedules.cpu.bias import schedule_beside_sums
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.partition import DataPartitioning
from tvmconvgrad.schedules.cpu.data.plan import DataPlan, DataPlanner
from tvmconvgrad.schedules.cpu.data.sizes import DataTile, sizes_of
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import inner_extents, largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.schedules.transforms.padding_elision import elide_padding
from tvmconvgrad.schedules.transforms.prefetch import EACH, PREFETCH_READS, prefetch_reads, prefetch_results
from tvmconvgrad.schedules.transforms.software_pipelining import pipeline_packing
from tvmconvgrad.schedules.transforms.task_fusion import fuse_tasks
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Sum, express
from tvmconvgrad.tir.annotations import NON_TEMPORAL, TRANSPOSE


@dataclass(frozen=True)
class DataRule:
    """Data gradients and forward convolutions with vectors over `vector_axis`: "channels" (N), "groups", "positions"
    (M), or "k"."""

    machine: CpuMachine
    vector_axis: str
    in_tile_registers: bool = False
    """Whether sums stay in AMX's tile registers; vectors then only write them."""

    @property
    def name(self) -> str:
        """`data-` and the vectorised axis, or `data-tiles`."""
        return "data-tiles" if self.in_tile_registers else f"data-{self.vector_axis}"

    def cost(self, problem: Problem) -> float | None:
        """Cycles of one core, about; None for filter gradients, and where vectors cannot lie along the axis."""
        if problem.gradient is Gradient.FILTER:
            return None
        planner = DataPlanner(self.machine, self.vector_axis, sizes_of(problem), self.in_tile_registers)
        return planner.least_cost() if planner.takes() else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `DataPlanner.plan`."""
        decisions = Decisions(given or {})
        sizes = sizes_of(problem)
        planner = DataPlanner(self.machine, self.vector_axis, sizes, self.in_tile_registers)
        plan = planner.plan(decisions)
        access = planner.access(plan.tile)
        implicit_axes = access.implicit_axes if plan.packs == "before" else 0
        multiples = sizes.multiples(plan.tile, plan.block_k, implicit_axes, access.pairs)
        aside = _written_positions(access, plan) if access.adds_aside(plan.k_parts) else 0
        expression = express(problem, replace(multiples, direct=plan.k_parts > 1 and not aside, aside=aside))
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        self._schedule_sums(sch, problem, expression, plan, access)
        schedule_beside_sums(sch, expression)
        module = self._with_data(Schedule(fuse_tasks(sch.mod, expression.sums)), problem, expression, plan, access)
        module = elide_padding(prefetch_reads(module, {expression.inputs[0].op.name: (plan.prefetch, 0)}), expression)
        if plan.tile.groups == 1:
            where = [plan.packs, *[plan.packs_filter] * len(expression.operands[1:])]
            module = pipeline_packing(
                module, [name for name, each in zip(expression.operands, where) if each == "work_item"]
            )
        module = apply_output_maps(module, expression, problem)
        if self.vector_axis == "groups" and not access.transposes_result and not plan.non_temporal:
            module = prefetch_results(module)
        return Scheduled(expression, module, self.name, numbers_of(plan), decisions.candidates)

    def _schedule_sums(
        self, sch: Schedule, problem: Problem, expression: Sum, plan: DataPlan, access: DataAccess
    ) -> None:
        rank, lanes, tile = problem.geometry.rank, self.machine.lanes, plan.tile
        results = expression.summed
        nests = [_nest_sum(sch, sch.get_sblock(name), rank, plan, access) for name in expression.sums]
        aside = access.adds_aside(plan.k_parts)
        for nest, result in zip(nests, results):
            if access.transposes_result and not aside:
                _transpose_tile(sch, nest.written, rank, tile, problem.data_format)
            else:
                _write_tile(sch, nest.written, rank, plan, lanes, access.writes_rows)
            if aside:
                _write_range(sch, sch.get_sblock(result.op.name), nest.work_items[-1], rank, access)
        columns = "c" if problem.gradient is Gradient.DATA else "o"
        for panel, nest in zip(map(sch.get_sblock, expression.operands[1:]), nests):
            if plan.packs_filter:
                at = nest.column if plan.packs_filter == "work_item" else None
                width = columns, tile.n
                run = 2 if access.pairs else 1
                packing.pack_filter(sch, panel, width, plan.block_k, tile.groups, problem.filter_axes, at, run)
            else:
                sch.compute_inline(panel)
        for nest in nests:
            sch.parallel(sch.fuse(*nest.work_items))
            sch.decompose_reduction(nest.block, nest.reduction)

    def _with_data(
        self, sch: Schedule, problem: Problem, expression: Sum, plan: DataPlan, access: DataAccess
    ) -> IRModule:
        """The module with the data packed where the plan says; in a work item, once for all sums fused there."""
        data = sch.get_sblock(expression.operands[0])
        if not plan.packs:
            sch.compute_inline(data)
            return sch.mod
        total = sch.get_consumers(data)[0]
        at = sch.get_loops(total)[0] if plan.packs == "work_item" else None
        tile, run = plan.tile, 2 if access.pairs and plan.tile.groups > 1 else 1
        packing.pack_data(sch, data, problem.data_format, plan.block_k, tile.groups, self.machine.lanes, at, run=run)
        return sch.mod


def _written_positions(access: DataAccess, plan: DataPlan) -> int:
    """The multiple that the positions of a result beside a scratch accumulator are rounded up to: 1 if work items write
    whole rows. Of parts of rows only the last one would be shorter, by a condition with which TVM does not see that a
    work item adds up what it writes."""
    return plan.tile.positions if DataPartitioning(access).splits_rows(plan.partition_tiles) else 1


@dataclass(frozen=True)
class Nest:
    """A sum's register tile, the block that writes it, and its loops: over work items, over the N blocks of a work
    item, and the outermost one over K."""

    block: SBlockRV
    written: SBlockRV
    work_items: list[LoopRV]
    column: LoopRV
    reduction: LoopRV


def _nest_sum(sch: Schedule, total: SBlockRV, rank: int, plan: DataPlan, access: DataAccess) -> Nest:
    """Nest the loops as the module's text says, and write the tiles."""
    tile, block, lanes = plan.tile, total, access.machine.lanes
    if tile.vector_axis == "k":
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        block = sch.rfactor(lane, rank + 3)
        sch.set_scope(total, 0, "local")
    if plan.k_parts > 1:
        part, _ = sch.split(sch.get_loops(block)[-1], [plan.k_parts, None])
        block, written = sch.rfactor(part, 0), total
    else:
        (written,) = sch.get_consumers(total)
    stored = tile_registers.keep(sch, block) if tile.tile_rows else None
    sch.set_scope(block, 0, "local")
    blocks.lanes_last(sch, block, 1, tile.groups)
    blocks.lanes_last(sch, block, -2, tile.positions if tile.vector_axis == "positions" else 1)
    (n, g, *positions, column), (*taps, summed), lane = _loops(sch, block, rank, tile.vector_axis == "k")
    part = [taps.pop()] if plan.k_parts > 1 else []
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.n])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    outer, register_rows = positions[:-1], []
    if tile.rows > 1:
        outer[-1], inner_row = sch.split(outer[-1], [None, tile.rows])
        register_rows = [inner_row]
    summing, pair = [*taps, summed], []
    if tile.vector_axis != "k":
        block_of, run = sch.split(summed, [None, plan.block_k])
        summing = [block_of, *taps, run]
        if access.pairs:
            summing[-1], *pair = sch.split(run, [None, 2])
        steps = largest_divisor(blocks.extent(sch, summing[-1]), access.steps)
        if steps > 1:
            summing[-1:] = sch.split(summing[-1], [None, steps])
            sch.unroll(summing[-1])
    rows = [n, *outer, row0]
    inner = inner_extents([blocks.extent(sch, loop) for loop in rows], plan.partition_tiles)
    split = [sch.split(loop, [None, size]) for loop, size in zip(rows, inner)]
    partitions, rows = ([pieces[i] for pieces in split] for i in (0, 1))
    group_range, g0 = sch.split(g0, [plan.group_partitions, None])
    column_range, column0 = sch.split(column0, [largest_divisor(blocks.extent(sch, column0), plan.n_partitions), None])
    work_items = [*partitions, group_range, column_range]
    order = {"positions": [g1, column1, *register_rows, row1], "k": [g1, row1, column1, *lane]}
    register_tile = order.get(tile.vector_axis, [row1, column1, g1])
    if stored is not None:
        register_tile = [g1, *register_rows, row1, column1, summing.pop()]
    inside = [g0, column0, *rows]
    if plan.groups_beside and plan.groups_beside > 1:
        g0, beside = sch.split(g0, [None, plan.groups_beside])
        inside = [g0, *rows, beside, column0]
    sch.reorder(*work_items, *part, *inside, *summing, *register_tile, *pair)
    if stored is not None and tile.tile_rows:
        row1 = tile_registers.annotate(sch, [*register_rows, row1], tile.tile_rows)
        tile_registers.store(sch, stored, rows[-1], tile.tile_rows, 1 + len(register_rows))
    else:
        blocks.vectorize_tile(sch, register_tile, lanes, access.pairs)
    if tile.vector_axis == "k":
        _add_lanes(sch, total, rows[-1])
    sch.reverse_compute_at(written, inside[-1], preserve_unit_loops=True)
    if plan.prefetch:
        sch.annotate(summing[0], PREFETCH_READS, 1)
        sch.annotate(row1, EACH, tile.rows * tile.positions)
    return Nest(block, written, work_items, column0, summing[0])


def _transpose_tile(sch: Schedule, result: SBlockRV, rank: int, tile: DataTile, data_format: str) -> None:
    """The loops that transpose a tile's vectors and write them along positions, or along a group's channels."""
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = (channel, group) if tile.vector_axis == "groups" else (group, channel)
    along = row
    if data_format == "NXC":
        outer, along = row, channel
    sch.reorder(image, *middle, outer, lane, along)
    sch.unroll(outer)
    sch.annotate(lane, TRANSPOSE, 1)


def _write_tile(sch: Schedule, result: SBlockRV, rank: int, plan: DataPlan, lanes: int, by_rows: bool) -> None:
    """The loops that write a tile along its vectors; `by_rows` if vectors may reach beyond the end of a row."""
    tile = plan.tile
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    if plan.non_temporal:
        sch.annotate(image, NON_TEMPORAL, 1)
    rows = [middle.pop()] if tile.rows > 1 else []
    written_tile = [group, channel, *rows, row] if tile.vector_axis == "positions" else [row, channel, group]
    sch.reorder(image, *middle, *written_tile)
    if by_rows:
        *outer, vector = [loop for loop in written_tile if tile.vector_axis == "positions" or loop is not group]
        for loop in outer:
            sch.unroll(loop)
        sch.annotate(vector, TRANSPOSE, 1)
    else:
        blocks.vectorize_tile(sch, written_tile, lanes)


def _write_range(sch: Schedule, result: SBlockRV, at: LoopRV, rank: int, access: DataAccess) -> None:
    """Convert a work item's scratch accumulator to the result's type and order, after the last K-part."""
    sch.reverse_compute_at(result, at, preserve_unit_loops=True)
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = sch.split(channel, [None, access.tile.n])
    if access.along:
        blocks.vectorize_tile(sch, [lane], access.machine.lanes)
    else:
        sch.reorder(image, *middle, group, outer, lane, row)
        sch.annotate(lane, TRANSPOSE, 1)


def _loops(
    sch: Schedule, block: SBlockRV, rank: int, lanes_are_summed: bool
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """(n, g, *positions, N channel), (*taps, K channel), and the loop over lanes that was split from the latter, if
    any."""
    loops = sch.get_loops(block)
    spatial = rank + 3
    lane = [loops.pop()] if lanes_are_summed else []
    return loops[:spatial], loops[spatial:], lane


def _add_lanes(sch: Schedule, total: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a tile's vectors of sums."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    *_, row, column, lane = sch.get_loops(total)
    for loop in (row, column, lane):
        sch.unroll(loop)
