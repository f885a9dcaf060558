"""Weights gradients of large filters on CPUs, by Winograd's algorithm (te/winograd).

Pattern. As in ../weights/rule.py. That rule has sums of the whole filter in memory, which are large: with 3x3
taps 24/9 times the filter. Here a work item has only those of its channels.

Loop nest:

    for partition of o:
      pad and transform dy                              # of the partition, in parallel
      parallel work item (partition of c):
        pad and transform x                             # of the partition
        for o block:
          for product f, tap of other axes, c tile, cache block of tiles:
            block = 0                                    # micro-kernel: c tile x o tile, in registers
            for tile in cache block: block += x[f, tile, c] * dy[f, tile, o]
            sums[f] += block
          result = sums transformed back                # vectorised over o

Why it is fast.
1. A work item sums over all tiles, so its sums are complete, and are transformed back while they are in L2. The sums of
   the whole filter never go through memory.
2. dy is transformed once. With several partitions of o its transform takes less memory, and x is transformed again for
   each.
3. Results with another order of axes, or with channels that don't fill register tiles, are copied from scratch memory.

Not done: what ../data/rule.py leaves out, for the same reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.blocks import LoopNest
from tvmconvgrad.schedules.cpu.winograd.channels.plan import WinogradChannelsPlan, WinogradChannelsPlanner
from tvmconvgrad.schedules.cpu.winograd.planner import WinogradPlanner
from tvmconvgrad.schedules.cpu.winograd.tiles import axes_of
from tvmconvgrad.schedules.cpu.winograd.transforms import Data, transform_data, transform_tile
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.te.winograd.axes import TiledAxis
from tvmconvgrad.te.winograd.filter import tiled_filter_gradient
from tvmconvgrad.tir.annotations import TRANSPOSE


@dataclass(frozen=True)
class WinogradChannelsRule(PlannedRule[WinogradPlanner[WinogradChannelsPlanner]]):
    """Weights gradients by Winograd's algorithm, by partitions of channels."""

    gradients = frozenset({Gradient.FILTER})
    machine: CpuMachine
    name = "winograd-channels"

    def planner(self, problem: Problem) -> WinogradPlanner[WinogradChannelsPlanner]:
        """A planner for each size of tiles, as one."""
        return WinogradPlanner.of(problem, lambda products: WinogradChannelsPlanner(self.machine, problem, products))

    def program(
        self, problem: Problem, planner: WinogradPlanner[WinogradChannelsPlanner], plan: WinogradChannelsPlan
    ) -> tuple[Expression, IRModule]:
        """Nest the sums, transform x and dy inside of their loops, and map the result."""
        axes = axes_of(problem, plan.products, (1,) * problem.geometry.rank)
        copies = bool(plan.copies_result)
        channels = ceil_to(problem.geometry.c, plan.c_block), ceil_to(problem.geometry.o, plan.o)
        expression = tiled_filter_gradient(problem, channels, axes, copies)
        sch = Schedule(expression.prim_func())
        nest = _nest(sch, problem, axes, plan, self.machine.lanes)
        many, lanes = sum(axis.tiled for axis in axes), self.machine.lanes
        x, y = Data("x_data", "tiled_x", many, plan.c_block), Data("y_data", "tiled_y", many, plan.o)
        transform_data(sch, x, problem.data_format, lanes, *nest.work_items)
        transform_data(sch, y, problem.data_format, lanes, nest.packing, in_parallel=True)
        schedule_zeros_and_bias(sch, expression)
        sch.parallel(*nest.work_items)
        sch.decompose_reduction(nest.tile, nest.reduction)
        if copies:
            copy_filter(sch, problem, lanes)
        module = apply_output_maps(sch.mod, expression, problem)
        return expression, module


def _nest(
    sch: Schedule, problem: Problem, axes: Sequence[TiledAxis], plan: WinogradChannelsPlan, lanes: int
) -> LoopNest:
    """Nest the loops of the sums and of the result. Inside of the loop over partitions of o dy is packed."""
    rank = len(axes)
    name, order = ("untiled", "XCO") if plan.copies_result else ("result", problem.filter_axes)
    loops, order = sch.get_loops(sch.get_sblock(name)), order.replace("X", "X" * rank)
    taps = [loop for loop, axis in zip(loops, order) if axis == "X"]
    tiled, direct = ([loop for loop, axis in zip(taps, axes) if axis.tiled == wanted] for wanted in (True, False))
    c_range, c = sch.split(loops[order.index("C")], [None, plan.c_range])
    partition, o_block, o = sch.split(loops[order.index("O")], [plan.o_partitions, None, plan.o])
    vector, lane = sch.split(o, [None, lanes])
    sch.reorder(partition, c_range, o_block, c, vector, *direct, *tiled, lane)
    transform_tile(sch, "untiled", [vector, *direct][-1], tiled, lane)
    tile, position = _nest_sum(sch, rank, plan, o_block, lanes)
    return LoopNest(tile, [c_range], partition, position)


def _nest_sum(sch: Schedule, rank: int, plan: WinogradChannelsPlan, at: LoopRV, lanes: int) -> tuple[SBlockRV, LoopRV]:
    """The sums of one o block, in the body of the loop `at`, by register tiles. Returns the tile's block and the
    outermost loop over positions."""
    total = sch.get_sblock("sum")
    cache_block = blocks.split_cache_blocks(sch, sch.get_loops(total)[rank + 2 :], plan.cache_block)
    tile = sch.rfactor(cache_block, 0)
    sch.set_scope(tile, 0, "local")
    count = len(sch.get_loops(total))
    sch.compute_at(total, at, preserve_unit_loops=True)
    cache_block, *outer, c, o = sch.get_loops(total)[-count:]
    c0, c1 = sch.split(c, [None, plan.c])
    sch.reorder(*outer, c0, cache_block, c1, o)
    blocks.vectorize_tile(sch, [c1, o], lanes)
    count = len(sch.get_loops(tile))
    sch.compute_at(tile, cache_block, preserve_unit_loops=True)
    c, o, *positions = sch.get_loops(tile)[-count:][rank + 1 :]
    sch.reorder(*positions, c, o)
    blocks.vectorize_tile(sch, [c, o], lanes)
    return tile, positions[0]


def copy_filter(sch: Schedule, problem: Problem, lanes: int) -> None:
    """Copy the result from the stage "untiled" to the user's order of axes, in parallel."""
    loops, rank = sch.get_loops(sch.get_sblock("result")), problem.geometry.rank
    order = problem.filter_axes.replace("X", "X" * rank)
    if order.endswith("O"):  # rows, of which the last vector is cut
        sch.annotate(loops[-1], TRANSPOSE, 1)
        sch.parallel(sch.fuse(*loops[:-1]))
    else:
        width = largest_divisor(problem.geometry.o, lanes)
        sch.parallel(sch.fuse(*blocks.transposing_pass(sch, loops, order.index("O"), width)))
