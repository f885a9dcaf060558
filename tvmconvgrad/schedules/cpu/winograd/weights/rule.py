"""Weights gradients with several taps on CPUs, by Winograd's algorithm (te/winograd).

Pattern. Stride 1, one group, two to five taps along one axis, or along two, of which the first has two or three. For
each of a tile's products there is a GEMM: M are the channels c of x, N the channels o of dy, K all tiles of all images.

Loop nest:

    parallel work item (split of K)                     # where few channels keep the partial sums small
      for cache block of tiles:
        pad and transform x and dy                      # of the block; without split-K in parallel
        for product f:                                  # without split-K in parallel
          for tap of other axes, o tile, c tile:
            sums = 0                                    # micro-kernel: c tile x o tile, in registers
            for tile in cache block: sums += x[f, tile, c] * dy[f, tile, o]
            partial[split, f] += sums
    sum = sum over splits                               # in a fixed order
    result = transformed back                           # vectorised over o

Why it is fast.
1. Along two axes of three taps there are 24 products where direct sums have 72.
2. The transformed operands of a cache block stay in the cache: of one core with split-K, otherwise of all cores, which
   share the block's products.
3. A tile's elements are loaded once, as vectors of channels, and transformed in registers or L1 (transforms.py).

Not done: what ../data/rule.py leaves out, for the same reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.blocks import LoopNest
from tvmconvgrad.schedules.cpu.winograd.planner import WinogradPlanner
from tvmconvgrad.schedules.cpu.winograd.tiles import axes_of
from tvmconvgrad.schedules.cpu.winograd.transforms import Data, transform_data, transform_tile
from tvmconvgrad.schedules.cpu.winograd.weights.plan import WinogradWeightsPlan, WinogradWeightsPlanner
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.te.winograd.axes import TiledAxis
from tvmconvgrad.te.winograd.filter import tiled_filter_gradient
from tvmconvgrad.tir.annotations import TRANSPOSE


@dataclass(frozen=True)
class WinogradWeightsRule(PlannedRule[WinogradPlanner[WinogradWeightsPlanner]]):
    """Weights gradients by Winograd's algorithm, by tiles of dy."""

    gradients = frozenset({Gradient.FILTER})
    machine: CpuMachine
    name = "winograd-weights"

    def planner(self, problem: Problem) -> WinogradPlanner[WinogradWeightsPlanner]:
        """A planner for each size of tiles, as one."""
        return WinogradPlanner.of(problem, lambda products: WinogradWeightsPlanner(self.machine, problem, products))

    def program(
        self, problem: Problem, planner: WinogradPlanner[WinogradWeightsPlanner], plan: WinogradWeightsPlan
    ) -> tuple[Expression, IRModule]:
        """Nest the sum, transform x and dy for each cache block, and transform the sums back."""
        axes = axes_of(problem, plan.products, plan.multiples)
        channels = ceil_to(problem.geometry.c, plan.c_block), ceil_to(problem.geometry.o, plan.o)
        copied = planner.for_tiles(plan.products).copies_result
        expression = tiled_filter_gradient(problem, channels, axes, copied)
        sch = Schedule(expression.prim_func())
        lanes, many = self.machine.lanes, sum(axis.tiled for axis in axes)
        nest = _nest_sum(sch, many, plan, lanes)
        for side, block in (("x", plan.c_block), ("y", plan.o)):
            data = Data(f"{side}_data", f"tiled_{side}", many, block)
            transform_data(sch, data, problem.data_format, lanes, nest.packing, in_parallel=plan.split_k == 1)
        _nest_result(sch, problem, axes, copied, lanes)
        schedule_zeros_and_bias(sch, expression)
        sch.parallel(sch.fuse(*nest.work_items))
        sch.decompose_reduction(nest.tile, nest.reduction)
        module = apply_output_maps(sch.mod, expression, problem)
        return expression, module


def _nest_sum(sch: Schedule, many: int, plan: WinogradWeightsPlan, lanes: int) -> LoopNest:
    """Split the sum into splits of K, cache blocks and register tiles, and nest the loops as the module's text says."""
    total, rank = sch.get_sblock("sum"), len(plan.cache_block) - 1
    positions = sch.get_loops(total)[rank + 2 :]
    cache_blocks = blocks.split_cache_blocks(sch, positions, plan.cache_block)
    partial = total
    if plan.split_k > 1:
        split, cache_blocks = sch.split(cache_blocks, [plan.split_k, None])
        partial = sch.rfactor(split, 0)
        cache_blocks = sch.get_loops(partial)[rank + 3]
        loops = sch.get_loops(total)
        blocks.sum_split_k(sch, loops, loops[-2], lanes)
    tile = sch.rfactor(cache_blocks, 0)
    sch.set_scope(tile, 0, "local")
    loops = sch.get_loops(tile)
    f, taps, (c, o), loops = loops[:many], loops[many:rank], loops[rank : rank + 2], loops[rank + 2 :]
    split, (cache_block, *positions) = loops[: plan.split_k > 1], loops[plan.split_k > 1 :]
    c0, c1 = sch.split(c, [None, plan.c])
    o0, o1 = sch.split(o, [None, plan.o])
    sch.reorder(*split, cache_block, *f, *taps, o0, c0, *positions, c1, o1)
    blocks.vectorize_tile(sch, [c1, o1], lanes)
    sch.reverse_compute_at(partial, c0, preserve_unit_loops=True)
    blocks.vectorize_tile(sch, sch.get_loops(partial)[-2:], lanes)
    return LoopNest(tile, split or f, cache_block, positions[0])


def _nest_result(sch: Schedule, problem: Problem, axes: Sequence[TiledAxis], is_copied: bool, lanes: int) -> None:
    """Transform the sums back, with vectors over o; and copy them if the user's filter has another order of axes."""
    result, order, rank = sch.get_sblock("result"), problem.filter_axes, problem.geometry.rank
    loops = sch.get_loops(result)
    if not is_copied:
        sch.parallel(sch.fuse(*_nest_taps(sch, loops, axes, lanes)))
        return
    if order.endswith("O"):  # rows, of which the last vector is cut
        spread = order.replace("X", "X" * rank)
        work_item = loops[spread.index("C")]
        sch.reorder(work_item, *(loop for loop, axis in zip(loops, spread) if axis == "X"))
        sch.annotate(loops[-1], TRANSPOSE, 1)
    else:
        before = order[: order.index("O")].replace("X", "X" * rank)
        work_item = sch.fuse(
            *blocks.transposing_pass(sch, loops, len(before), largest_divisor(problem.geometry.o, lanes))
        )
    untiled = sch.get_sblock("untiled")
    sch.compute_at(untiled, work_item, preserve_unit_loops=True)
    _nest_taps(sch, sch.get_loops(untiled)[1:], axes, lanes)
    sch.parallel(work_item)


def _nest_taps(sch: Schedule, loops: Sequence[LoopRV], axes: Sequence[TiledAxis], lanes: int) -> list[LoopRV]:
    """Compute all taps of a vector of channels together; returns the loops over channels and vectors."""
    *taps, c, o = loops
    tiled, direct = ([loop for loop, axis in zip(taps, axes) if axis.tiled == wanted] for wanted in (True, False))
    vector, lane = sch.split(o, [None, largest_divisor(blocks.extent(sch, o), lanes)])
    sch.reorder(c, vector, *direct, *tiled, lane)
    transform_tile(sch, "untiled", [vector, *direct][-1], tiled, lane)
    return [c, vector]
