"""Weights gradients on CPUs: a GEMM for each tap, with split-K.

Pattern. For each tap, M are the channels c of x, N the channels o of dy, and K all positions (n, *p) of all images.

Loop nest. A work item is a split of K with a partition of groups and channels:

    parallel work item (split of K, partition of groups, of c, of o)
      for cache block of positions:                   # packed operands fit L2, what one tile reads of them L1
        pack x and dy of the cache block              # or before all work items, or they are read in place
        for group block, o tile, c tile, tap:         # vectors over c: c tile, o tile
          tile = 0                                    # micro-kernel: tile.c x tile.o sums, in registers
          for position in cache block: tile += x[position + tap, c] * dy[position, o]   # f32: in summation blocks
          partial[split] += tile                      # epilogue
    result = sum over splits                          # in a fixed order: the bits don't depend on the threads

Why it is fast.
1. K is far longer than M and N. A cache block of positions stays in the caches while all taps and channels use it. What
   a tile reads of the vectorised operand stays in L1, while tiles along the other one pass; that reads less from L2,
   since a tile has more channels along its vectors. With vectors over c ResNeXt's conv5a_expand and DeepLab's
   block4_expand (NCX) took 0.80 and 0.71 of the time that they took with the loops the other way round (an AMD EPYC
   with Zen 5).
2. Split-K gives work items where the filter is small. The splits are fixed by the problem, not by the threads.
3. x and dy are packed, by each work item for a cache block, or before all of them. They are read in place only in f32:
   in NXC where that is as good, in matrix products whose cache block fits L1 or that few tiles read, in depthwise
   layers, and dy if few tiles read it; in NCX without groups the operand of which a step broadcasts elements, if it
   needs no padding. Where that is packed, too, its rows are copied as they are. So only the other one is transposed.
   MobileNetV2's block2_expand, block4_expand and block1_project became 1.7, 1.6
   and 1.5 times as fast (an AMD EPYC with Zen 5).
4. A tile is added up in place, in the result, if that is f32 and the tile's vectors are contiguous in it. If the filter
   is large, or if the call accumulates, the tile prefetches its part of it. Otherwise it is added up in a scratch
   accumulator, which each work item converts at the end; with split-K or several groups, a pass of its own does.
5. A step prefetches what a later one reads in place, or, with vectors over o, from x that was packed before all work
   items (transforms/prefetch.py). What a work item packs next is prefetched while it sums
   (transforms/software_pipelining.py), and so is what it reads in place in NCX.
6. Where a CPU's instruction for two bf16 products is faster than two FMAs (`CpuMachine.takes_pairs`), bf16 operands
   keep their 16 bits, and it adds up the same position of two images (tir/passes/pairs.py). With an odd number of
   images, two halves of an image take their place. If it has an odd number of rows, both halves share the middle row at
   weight 1/2, which is exact for normal bf16.
7. On CPUs with AMX_BF16 there is a second micro-kernel for bf16: c tile x o tile are tiles of 16 x 16 sums in tile
   registers, and an instruction adds up 4 to 16 positions of the last axis, of two images (tir/passes/tiles.py). Rows
   of dy are continued by zeros to a multiple of these positions. An infinity at the end of a row of x may meet them;
   the NaN stays within the filter's extent of what the infinity meets. Of few channels c, as in first layers, the rows
   of a tile are the taps of one of them along the axis before the last, whose padding is then multiplied, too.

There is one rule for each vectorised axis: o; c, which is fast where o are few or c is innermost in the filter; and the
groups, where a group has few of both. A fourth one has the sums in tile registers.

Not done: a register tile has one tap, except where a group has few channels, with vectors over groups or in tile
registers, and, with vectors over c, where x has one vector of channels. Elsewhere more taps gain nothing, and LLVM
mixes up the loads of different positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import blocks, tile_registers
from tvmconvgrad.schedules.cpu.bias import CacheBlocks, schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.blocks import LoopNest
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.cpu.packing.data import DataBlocks, pack_data
from tvmconvgrad.schedules.cpu.weights.access import WeightsAccess, WeightsAxis, WeightsTile
from tvmconvgrad.schedules.cpu.weights.partition import adds_far
from tvmconvgrad.schedules.cpu.weights.plan import WeightsPlan, WeightsPlanner
from tvmconvgrad.schedules.cpu.weights.tile_registers import positions as positions_of_tile
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.schedules.transforms.bias_fusion import fuse_bias
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.schedules.transforms.padding_elision import elide_padding
from tvmconvgrad.schedules.transforms.prefetch import prefetch_reads, prefetch_results
from tvmconvgrad.schedules.transforms.software_pipelining import pipeline_packing, pipeline_reading
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.reducing import forms
from tvmconvgrad.te import Expression
from tvmconvgrad.te.bias import SUM
from tvmconvgrad.te.tensors import group_sizes
from tvmconvgrad.tir.annotations import PIPELINED, PREFETCH_EACH, PREFETCH_LINE, PREFETCH_READS


@dataclass(frozen=True)
class WeightsRule(PlannedRule[WeightsPlanner]):
    """Weights gradients with vectors over `vector_axis`."""

    gradients = frozenset({Gradient.FILTER})
    machine: CpuMachine
    vector_axis: WeightsAxis
    in_tile_registers: bool = False
    """Whether sums stay in AMX's tile registers; vectors then only add them up in memory."""

    @property
    def name(self) -> str:
        """`weights-` and the vectorised axis, or `weights-tiles`."""
        return "weights-tiles" if self.in_tile_registers else f"weights-{self.vector_axis.value}"

    @property
    def opt_level(self) -> int:
        """LLVM's level. With vectors over groups, 2 leaves loops that 3 unrolls: bf16 gradients took 1.24 times as long
        in the mean. With the others 137 gradients took as long with 2 as with 3 (an AMD EPYC with Zen 4). In tile
        registers it was not measured."""
        return 3 if self.vector_axis is WeightsAxis.GROUPS or self.in_tile_registers else 2

    def forms(self, problem: Problem) -> tuple[Problem, ...]:
        """In tile registers a filter that moves along the first axes alone, as of 7x1, may have long rows. With vectors
        over channels ten such layers took as long with them (f32, an Intel Xeon with AMX)."""
        return forms(problem) if self.in_tile_registers else (problem,)

    def planner(self, problem: Problem) -> WeightsPlanner:
        """The planner of one vectorised axis."""
        return WeightsPlanner(self.machine, self.vector_axis, problem, self.in_tile_registers)

    def program(self, problem: Problem, planner: WeightsPlanner, plan: WeightsPlan) -> tuple[Expression, IRModule]:
        """Nest the sum, pack x and dy, then prefetch, elide padding and map the result."""
        tile, access = plan.tile, planner.access(plan.tile)
        expression = express(problem, _blocking(plan, access))
        sch = Schedule(expression.prim_func())
        nest = _nest_sum(sch, problem, plan, access)
        self._pack(sch, problem, expression, plan, access, nest.packing)
        if not access.writes_result:
            work_item = nest.work_items[-1] if access.finishes_by_work_item(plan.split_k, plan.partitions) else None
            self._finish(sch, problem, tile, work_item)
        bias_blocks = _bias_blocks(problem, plan, access)
        schedule_zeros_and_bias(sch, expression, bias_blocks)
        sch.parallel(sch.fuse(*nest.work_items))
        zeroed = sch.decompose_reduction(nest.tile, nest.reduction)
        if tile.tile_rows:
            tile_registers.zero(sch, zeroed, tile.tile_rows)
        # An instruction on tiles adds up positions along the last axis, of which hardly ever all read padding. Where
        # its rows are taps along another axis, a tap is left out there only if all of them read padding.
        views = expression.views[:-1] if tile.tile_rows else expression.views
        module = prefetch_reads(sch.mod, _distances(problem, expression, plan))
        module = elide_padding(module, replace(expression, views=views))
        packed = zip(expression.operands, (plan.c_block, plan.o_block), plan.packs)
        if tile.groups == 1:
            module = pipeline_packing(
                module, [name for name, block, where in packed if block and where is Packs.WORK_ITEM]
            )
        if access.broadcasts_in_place:
            for name, block in zip(_x_and_y(problem, expression), (plan.c_block, plan.o_block)):
                if not block:
                    module = pipeline_reading(module, name)
        if bias_blocks is not None:
            module = fuse_bias(module, "sum", SUM)
        module = apply_output_maps(module, expression, problem)
        if access.writes_result and plan.split_k == 1 and (problem.epilogue.accumulate or adds_far(access)):
            module = prefetch_results(module, "sum")
        return expression, module

    def _pack(
        self,
        sch: Schedule,
        problem: Problem,
        expression: Expression,
        plan: WeightsPlan,
        access: WeightsAccess,
        at: LoopRV,
    ) -> None:
        """Pack x and dy where the plan says, in a work item inside of the loop `at`."""
        blocks_of = zip(expression.operands, (plan.c_block, plan.o_block), plan.packs)
        prefetched = zip(_ahead(problem, plan.prefetch), (problem.x_shape, problem.y_shape))
        for (name, channels, where), (distance, shape) in zip(blocks_of, prefetched):
            block = sch.get_sblock(name)
            if not channels:
                sch.compute_inline(block)
                continue
            packed = DataBlocks(channels, plan.tile.groups, images=2 if access.pairs else 1)
            place, far = at if where is Packs.WORK_ITEM else None, distance[0] * prod(shape[1 - len(distance) :])
            pack_data(sch, block, problem.data_format, packed, self.machine.lanes, place, far)

    def _finish(self, sch: Schedule, problem: Problem, tile: WeightsTile, work_item: LoopRV | None) -> None:
        """Convert the filter from the accumulator's order, which has vectors innermost, to the user's order and type:
        in a parallel pass of its own, or by each `work_item` for its part."""
        geometry, axes, result = problem.geometry, problem.filter_axes, sch.get_sblock("result")
        if work_item is not None:
            sch.reverse_compute_at(result, work_item, preserve_unit_loops=True)
        loops = sch.get_loops(result)[-len(problem.filter_shape) :]
        c_group, o_group = group_sizes(geometry)
        axis, width = tile.vector
        extents = {"C": c_group, "O": o_group, "G": geometry.groups}
        if axis == "G" and o_group == 1:
            axis, extents["O"] = "O", geometry.groups  # the only channel of each group
        if axis == "G" or axes.endswith(axis):
            rows = blocks.finish_pass(sch, loops, self.machine.lanes)
        else:
            before = axes[: axes.index(axis)].replace("X", "X" * geometry.rank)
            rows = blocks.transposing_pass(sch, loops, len(before), gcd(extents[axis], width))
        if work_item is None:
            sch.parallel(sch.fuse(*rows))


def _bias_blocks(problem: Problem, plan: WeightsPlan, access: WeightsAccess) -> CacheBlocks | None:
    """How the bias gradient is split to be summed beside this one; None if it is summed by itself: dy must be
    read as a whole, once, and along its channels."""
    image_halves, partitions = access.blocking.image_halves, plan.g_partitions * plan.o_partitions
    is_whole = not problem.transposed and problem.crop is None and image_halves == 1 and plan.c_partitions == 1
    along = problem.data_format == "NXC" and problem.geometry.o % partitions == 0
    if not (problem.epilogue.bias_delta and is_whole and along):
        return None
    images, *positions = plan.cache_block
    return CacheBlocks((2 * images if access.pairs else images, *positions), plan.split_k, partitions)


def _blocking(plan: WeightsPlan, access: WeightsAccess) -> Blocking:
    """The blocks that the tensor expression is rounded up to."""
    implicit_axes = access.implicit_axes if plan.packs[0] is Packs.BEFORE and plan.c_block else 0
    packed = plan.c_block, plan.o_block
    return replace(access.blocking, in_place=access.writes_result, packed=packed, implicit_axes=implicit_axes)


def _x_and_y(problem: Problem, expression: Expression) -> list[str]:
    """The names of these inputs, in this order."""
    names = [tensor.op.name for tensor in expression.inputs]
    return names[::-1] if problem.transposed else names


def _distances(problem: Problem, expression: Expression, plan: WeightsPlan) -> dict[str, Sequence[int]]:
    """How far ahead a step prefetches from each tensor, along its last axes."""
    ahead = zip(_x_and_y(problem, expression), _ahead(problem, plan.prefetch))
    found: dict[str, Sequence[int]] = dict(ahead) if plan.prefetch else {}
    if plan.prefetches_blocks:
        found[expression.operands[0]] = [1, *[0] * (problem.geometry.rank + 3)]
    return found


def _ahead(problem: Problem, positions: int) -> tuple[list[int], list[int]]:
    """The prefetch distances of x, and of y, along the last axes in NXC. They are whole rows, since a strided step does
    not read what follows in memory next."""
    geometry = problem.geometry
    rows, within = positions, [0]
    if geometry.rank > 1:
        rows, within = -(-positions // max(geometry.y[-1], 1)), [0, 0]
    return [rows * geometry.strides[-len(within)], *within], [rows, *within]


def _nest_sum(sch: Schedule, problem: Problem, plan: WeightsPlan, access: WeightsAccess) -> LoopNest:
    """Split the sum over positions into splits of K, cache blocks, and what a register tile adds up."""
    total, rank = sch.get_sblock("sum"), problem.geometry.rank
    positions, pair = sch.get_loops(total)[3 + rank :], []
    if access.pairs:
        positions[0], *pair = sch.split(positions[0], [None, 2])
    cache_blocks = blocks.split_cache_blocks(sch, positions, plan.cache_block, pair)
    partial = total
    if plan.split_k > 1:
        split, cache_blocks = sch.split(cache_blocks, [plan.split_k, None])
        partial = sch.rfactor(split, 0)
        cache_blocks = sch.get_loops(partial)[4 + rank]
        loops = sch.get_loops(total)
        blocks.sum_split_k(sch, loops, _innermost(sch, loops, plan.tile), access.machine.lanes)
    tile = sch.rfactor(cache_blocks, 0)
    stored = tile_registers.keep(sch, tile) if plan.tile.tile_rows else tile
    sums = [stored]
    if plan.summation_blocks:
        loop = sch.get_loops(tile)[plan.summation_axis - 1 - rank - len(pair)]
        tile = sch.rfactor(sch.split(loop, [plan.summation_blocks, None])[0], 0)
        sch.set_scope(stored, 0, "local")
        sums.append(tile)
    sch.set_scope(tile, 0, "local")
    for block in [*sums, *([partial] if plan.split_k > 1 else []), *([] if access.writes_result else [total])]:
        blocks.store_filter(sch, block, rank, "G" + problem.filter_axes, plan.tile.vector)
    return _nest_tile(sch, problem, plan, access, tile, stored, partial)


def _nest_tile(
    sch: Schedule,
    problem: Problem,
    plan: WeightsPlan,
    access: WeightsAccess,
    tile: SBlockRV,
    stored: SBlockRV,
    partial: SBlockRV,
) -> LoopNest:
    """Nest the loops as the module's text says."""
    rank, lanes = problem.geometry.rank, access.machine.lanes
    g, *rest = sch.get_loops(tile)
    k, (c, o), rest = rest[:rank], rest[rank : rank + 2], rest[rank + 2 :]
    split = rest[:1] if plan.split_k > 1 else []
    cache_block, *positions = rest[len(split) :]
    summation_block = [positions.pop(plan.summation_axis)] if plan.summation_blocks else []
    pair = [positions.pop()] if access.pairs else []
    g_partition, g0, g1 = sch.split(g, [plan.g_partitions, None, plan.tile.groups])
    c_partition, c0, c1 = sch.split(c, [plan.c_partitions, None, plan.tile.c])
    o_partition, o0, o1 = sch.split(o, [plan.o_partitions, None, plan.tile.o])
    k0, k1 = zip(*(sch.split(loop, [None, taps]) for loop, taps in zip(k, plan.tile.taps)))
    # A thread takes neighbouring work items. In the filter's order they write neighbouring cache lines, so threads
    # do not write beside each other's lines, which a core would prefetch, maybe from a far core's cache.
    partitions = {"C": c_partition, "O": o_partition}
    work_items = [*split, g_partition, *(partitions[axis] for axis in problem.filter_axes if axis in partitions)]
    register_tile = plan.tile.loops(k1, c1, o1, g1)
    if access.broadcasts_in_place:
        sch.annotate(cache_block, PIPELINED, 1)
    if plan.tile.tile_rows:
        row, run = sch.split(positions[-1], [None, positions_of_tile(blocks.extent(sch, positions[-1]))])
        positions, by_taps = [*positions[:-1], row], [axis for axis, taps in enumerate(plan.tile.taps) if taps > 1]
        across = [c1, *(k1[axis] for axis in by_taps)]
        register_tile = [g1, *(loop for axis, loop in enumerate(k1) if axis not in by_taps), *across, o1, run]
    tiles = [c0, o0] if plan.tile.vector_axis is WeightsAxis.C else [o0, c0]
    sch.reorder(*work_items, cache_block, g0, *tiles, *k0, *summation_block, *positions, *register_tile, *pair)
    if plan.tile.tile_rows:
        vectors = None
        tile_registers.annotate(sch, across, plan.tile.tile_rows)
        m = [-2, *(axis - rank - 2 for axis in by_taps)]
        tile_registers.store(sch, stored, k0[-1], plan.tile.tile_rows, m, -1)
    else:
        vectors = blocks.vectorize_tile(sch, register_tile, lanes, access.pairs)
    for block, at in [*((stored, loop) for loop in summation_block), (partial, k0[-1])]:
        sch.reverse_compute_at(block, at, preserve_unit_loops=True)
        group, *taps, c, o = sch.get_loops(block)[-(rank + 3) :]
        added = plan.tile.loops(taps, c, o, group)
        sch.reorder(*added)
        blocks.vectorize_tile(sch, added, lanes)
    if plan.prefetch or plan.prefetches_blocks:
        sch.annotate(positions[-1], PREFETCH_READS, 1)
        if vectors is not None:
            sch.annotate(vectors, PREFETCH_LINE, max(CACHE_LINE // (F32_BYTES * lanes), 1))
    if plan.prefetch:
        for loop, taps, stride in zip(k1, plan.tile.taps, problem.geometry.strides):
            # a step reads so many new rows, and new positions, of x
            sch.annotate(loop, PREFETCH_EACH, min(taps, stride))
    return LoopNest(tile, work_items, g0 if plan.tile.groups > 1 else cache_block, positions[0])


def _innermost(sch: Schedule, loops: Sequence[LoopRV], tile: WeightsTile) -> LoopRV:
    """The loop of the sum over splits of K along which the accumulator is contiguous: that of the vectors, if they have
    several lanes."""
    g, *k, c, o, _ = loops
    axis, width = tile.vector
    if width > 1:
        return {"G": g, "C": c, "O": o}[axis]
    return next((loop for loop in reversed(tile.loops(k, c, o, g)) if blocks.extent(sch, loop) > 1), g)
