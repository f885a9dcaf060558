"""Weights gradients with few channels in a group on CPUs, in NCX, vectorised over positions.

Pattern. NCX, either depthwise, or one group with stride 1 along the last axis. In NCX positions are contiguous, so
nothing is transposed: the vectorised axis is K, the positions. Each tap and pair of channels has a vector of sums, so
there should be few of them; where there are many, the cost model prefers weights/rule.py.

Loop nest. A work item is a split of K with a partition of groups:

    parallel work item (split of K, partition of groups)
      for cache block of positions:      # an image or a few, or as many of its rows as fit the cache
        for group:                       # in the order in which groups lie in memory
          for channels, block of taps:
            tile = 0                     # micro-kernel: taps x channels, in registers
            for rows, vector of positions along the last axis:
              tile[tap] += x[positions + tap] * dy[positions]
            sums[tap] += tile[tap]
      partial[split] = the lanes of each of the sums, added up
    result = sum over splits             # in a fixed order: the bits don't depend on the threads

Why it is fast.
1. A step of the innermost loop takes several rows of positions, so that several taps use a row of x that is loaded
   once.
2. Data is read in place and prefetched at strides up to 4: f32 on CPUs with AVX or AVX-512, 16 bits with AVX512BW.
   Masked loads give zeros for padding and behind the end of a row; elements a stride apart are picked from several
   loads (tir/passes/masking.py). With a single tap all positions are one row. Cache blocks are then so short that L2
   also holds the next one, which is prefetched.
3. An instruction for bf16 adds the products of two neighbouring positions (tir/passes/pairs.py).
4. All other data is packed with its padding. Along a strided last axis x is then packed phase by phase, so that vectors
   are contiguous.

Not done: channels are not vectorised, since there are too few to fill a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.blocks import LoopNest
from tvmconvgrad.schedules.cpu.packing.data import DataBlocks, pack_data
from tvmconvgrad.schedules.cpu.weights_rows.plan import RowsPlan, RowsPlanner
from tvmconvgrad.schedules.expressions import Blocking, express
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.schedules.transforms.padding_elision import elide_padding
from tvmconvgrad.schedules.transforms.prefetch import prefetch_reads
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.tir.annotations import MASK, PAIRS, PREFETCH_EACH, PREFETCH_READS

FEW_LANES = 4
"""To add up the lanes of a vector, it is first reduced to a vector of so many."""


@dataclass(frozen=True)
class RowsRule(PlannedRule[RowsPlanner]):
    """Weights gradients with vectors over positions."""

    gradients = frozenset({Gradient.FILTER})
    machine: CpuMachine
    name = "weights-rows"

    def planner(self, problem: Problem) -> RowsPlanner:
        """The planner of vectors over positions."""
        return RowsPlanner(self.machine, problem)

    def program(self, problem: Problem, planner: RowsPlanner, plan: RowsPlan) -> tuple[Expression, IRModule]:
        """Nest the sum, pack x and dy or read them in place, then prefetch, elide padding and map the result."""
        tile = plan.tile
        writes_result = problem.output_dtype == "f32"
        blocking = Blocking(c=tile.c, o=tile.o, position=tile.lanes, pairs=plan.pairs, in_place=writes_result)
        expression = express(problem, replace(blocking, x_by_phases=not plan.in_place))
        sch = Schedule(expression.prim_func())
        nest = _nest_sum(sch, problem.geometry.rank, plan)
        for name in expression.operands:
            block = sch.get_sblock(name)
            if plan.in_place:
                sch.compute_inline(block)
            else:
                packed = DataBlocks(channels=1)
                pack_data(sch, block, problem.data_format, packed, self.machine.lanes, nest.packing)
        schedule_zeros_and_bias(sch, expression)
        sch.parallel(sch.fuse(*nest.work_items))
        sch.decompose_reduction(nest.tile, nest.reduction)
        if not writes_result:
            rows = blocks.finish_pass(sch, sch.get_loops(sch.get_sblock("result")), self.machine.lanes)
            sch.parallel(sch.fuse(*rows))
        module = prefetch_reads(sch.mod, {tensor.op.name: _ahead(problem, plan) for tensor in expression.inputs})
        module = elide_padding(module, _along_rows(expression))
        module = apply_output_maps(module, expression, problem)
        return expression, module


def _ahead(problem: Problem, plan: RowsPlan) -> tuple[int, ...]:
    """How far ahead a step prefetches from both inputs, along their last axes: some rows, or a cache block of the only
    row, or the images of one that has whole rows."""
    geometry = problem.geometry
    if geometry.rank > 1:
        return plan.prefetch, 0
    return (plan.prefetch,) if plan.prefetch < geometry.y[-1] else (plan.cache_block[0], 0, 0)


def _along_rows(expression: Expression) -> Expression:
    """The expression without the view of the last axis: padding is not left out along it, since a vector's positions
    hardly ever all read padding."""
    return replace(expression, views=expression.views[:-1])


def _nest_sum(sch: Schedule, rank: int, plan: RowsPlan) -> LoopNest:
    """Split the sum over positions into splits of K, cache blocks, lanes, and what a register tile adds up."""
    total = sch.get_sblock("sum")
    positions = sch.get_loops(total)[3 + rank :]
    vectors, lane = sch.split(positions[-1], [None, plan.tile.lanes])
    pair: list[LoopRV] = []
    if plan.pairs:
        lane, *pair = sch.split(lane, [None, 2])
    positions = [*positions[:-1], vectors]
    cache_blocks = blocks.split_cache_blocks(sch, positions, plan.cache_block, [lane, *pair])
    adding, split_k = total, int(plan.split_k > 1)
    if split_k:
        split, cache_blocks = sch.split(cache_blocks, [plan.split_k, None])
        adding = sch.rfactor(split, 0)
        sch.parallel(sch.get_loops(total)[0])
        cache_blocks, lane = sch.get_loops(adding)[4 + rank], sch.get_loops(adding)[-1 - len(pair)]
    sums = sch.rfactor(lane, split_k + rank + 3)
    cache_blocks = sch.get_loops(sums)[3 + rank + split_k]
    tile = sch.rfactor(cache_blocks, 0)
    sch.set_scope(tile, 0, "local")
    return _nest_tile(sch, rank, plan, tile, sums, adding)


def _nest_tile(sch: Schedule, rank: int, plan: RowsPlan, tile: SBlockRV, sums: SBlockRV, adding: SBlockRV) -> LoopNest:
    """Nest the loops as the module's text says."""
    g, *rest = sch.get_loops(tile)
    k, (c, o), rest = rest[:rank], rest[rank : rank + 2], rest[rank + 2 :]
    split = rest[:1] if plan.split_k > 1 else []
    cache_block, *positions = rest[len(split) :]
    pair = [positions.pop()] if plan.pairs else []
    lane = positions.pop()
    g_partition, g0 = sch.split(g, [plan.g_partitions, None])
    c0, c1 = sch.split(c, [None, plan.tile.c])
    o0, o1 = sch.split(o, [None, plan.tile.o])
    k0, k1 = zip(*(sch.split(loop, [None, taps]) for loop, taps in zip(k, plan.tile.taps)))
    rows, row = sch.split(positions[-2], [None, plan.tile.rows])
    positions = [*positions[:-2], rows, positions[-1]]
    work_items = [*split, g_partition]
    register_tile = [row, *k1, c1, o1, lane]
    sch.reorder(*work_items, cache_block, g0, c0, o0, *k0, *positions, *register_tile, *pair)
    if plan.in_place:
        for loop in register_tile[:-1]:
            sch.unroll(loop)
        sch.annotate(lane, PAIRS if plan.pairs else MASK, 1)
    else:
        blocks.vectorize_tile(sch, register_tile, plan.tile.lanes, plan.pairs)
    if plan.whole_rows:
        sch.unroll(positions[-1])
    if plan.prefetch:
        sch.annotate(positions[-1], PREFETCH_READS, 1)
        for loop in (c1, o1) if rank == 1 else (row, *k1[-2:-1], c1, o1):
            sch.annotate(loop, PREFETCH_EACH, blocks.extent(sch, loop))
    sch.reverse_compute_at(sums, k0[-1], preserve_unit_loops=True)
    lane, *taps = sch.get_loops(sums)[-len(sch.get(sums).writes[0].region) :]
    sch.reorder(*taps, lane)
    blocks.vectorize_tile(sch, [*taps, lane], plan.tile.lanes)
    _add_lanes(sch, adding, g_partition)
    return LoopNest(tile, work_items, g0, positions[0])


def _add_lanes(sch: Schedule, adding: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a group's vectors of sums: first to vectors of `FEW_LANES`, then to one number."""
    _, few = sch.split(sch.get_loops(adding)[-1], [None, FEW_LANES])
    axes = len(sch.get(adding).writes[0].region)
    part = sch.rfactor(few, axes)
    sch.set_scope(part, 0, "local")
    sch.reverse_compute_at(part, at, preserve_unit_loops=True)
    few, several, *element = sch.get_loops(part)[-(axes + 2) :]
    sch.reorder(*element, several, few)
    each = sch.fuse(*element)
    blocks.vectorize_tile(sch, [several, few], FEW_LANES)
    sch.reverse_compute_at(adding, each, preserve_unit_loops=True)
    sch.unroll(sch.get_loops(adding)[-(axes + 1)])
