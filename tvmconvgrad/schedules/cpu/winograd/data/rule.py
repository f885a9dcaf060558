"""Data gradients and forward convolutions with several taps on CPUs, by Winograd's algorithm (te/winograd).

Pattern. One group, two to five taps along one or two axes; stride 1, or a data gradient whose output phases all have
so many taps. In NCX, and with several phases, whole vectors of N. For each of a tile's products there is a GEMM: M are
the tiles of the result, N its channels in all phases, K the channels of the data and the taps of other axes.

Loop nest:

    for panel: pad and transform the filter                     # in parallel
    parallel work item (partition of tiles, of N)
      pad and transform the data                                # of the partition
      for product f, N block:
        for cache block of K, image, M block:
          tile = 0                                              # micro-kernel, in registers
          for K block, tap of other axes, k: tile += data[f, M block, k] * panel[f, k, N block]
          sum[f, M block, N block] += tile
      result = transformed back                                 # vectorised over N

Or, for a large filter:

    for partition of tiles:
      pad and transform the data                                # in parallel
      parallel work item (N block):
        pack all taps of the filter for the N block
        for products f along the first axis:
          transform the filter to the panels of f
          the products f as above
        result = transformed back

Why it is fast.
1. Along two axes of three taps there are 36 products where direct sums have 144.
2. The transformed data of a work item, and its sums, stay in L2 if they fit. Where the filter is large and tiles are
   few, the data is transformed once, in parallel, and each work item transforms the filter of its own channels. The
   transformed filter, which is 4 times as large, then never goes through memory.
3. A tile's elements are loaded once, as vectors of channels, and transformed in registers or L1 (transforms.py).
4. Results in NCX, or with channels that don't fill vectors, are transformed back into scratch memory of the work item,
   and copied from there.
5. A work item has one output phase. Where data is transformed before the work items, that is once for all phases that
   begin at the same position.
6. A K of more than 64 channels is summed in registers by cache blocks, which are added up in the cache. This bounds
   rounding errors (`CACHE_BLOCK` in plan.py), and takes few cycles.

Not done: strided forward convolutions, phases with different numbers of taps, dilations larger than the tensor, and
larger tiles, whose rounding errors are greater. Nor is a plan taken by default whose workspace would be larger than the
tensors. Results are rounded differently than direct sums, and an infinity reaches a whole tile, so only targets with
`-algorithm=auto` have this rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.cpu.packing.filter import FilterPanels, pack_filter
from tvmconvgrad.schedules.cpu.winograd.data.plan import WinogradDataPlan, WinogradDataPlanner
from tvmconvgrad.schedules.cpu.winograd.planner import WinogradPlanner
from tvmconvgrad.schedules.cpu.winograd.sizes import K_BLOCKS
from tvmconvgrad.schedules.cpu.winograd.tiles import axes_of
from tvmconvgrad.schedules.cpu.winograd.transforms import Data, transform_data, transform_tile
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.te.tensors import Index, ceil_to
from tvmconvgrad.te.winograd.axes import TiledAxis
from tvmconvgrad.te.winograd.data import tiled_positions
from tvmconvgrad.tir.annotations import NON_TEMPORAL, TRANSPOSE


@dataclass(frozen=True)
class WinogradDataRule(PlannedRule[WinogradPlanner[WinogradDataPlanner]]):
    """Data gradients and forward convolutions by Winograd's algorithm."""

    gradients = frozenset({Gradient.DATA, Gradient.FORWARD})
    machine: CpuMachine
    name = "winograd-data"

    def planner(self, problem: Problem) -> WinogradPlanner[WinogradDataPlanner]:
        """A planner for each size of tiles, as one."""
        return WinogradPlanner.of(problem, lambda products: WinogradDataPlanner(self.machine, problem, products))

    def program(
        self, problem: Problem, planner: WinogradPlanner[WinogradDataPlanner], plan: WinogradDataPlan
    ) -> tuple[Expression, IRModule]:
        """Nest the result and its sums, transform data and filter where the plan says, and map the result."""
        is_data, copied = problem.gradient is Gradient.DATA, planner.for_tiles(plan.products).copies_result
        c, o = (plan.n, plan.block_k) if is_data else (plan.block_k, plan.n)
        channels = ceil_to(problem.geometry.c, c), ceil_to(problem.geometry.o, o)
        axes, lanes = axes_of(problem, plan.products, plan.multiples), self.machine.lanes
        expression = tiled_positions(problem, channels, axes, copied)
        sch = Schedule(expression.prim_func())
        result = sch.get_sblock("result")
        partition, work_item = _nest_result(sch, result, axes, plan, lanes, problem.data_format if copied else "")
        if copied:
            untiled = sch.get_sblock("untiled")
            sch.compute_at(untiled, work_item, preserve_unit_loops=True)
            *_, j = loops = sch.get_loops(untiled)
            _nest_tiles(sch, loops[-1 - len(axes) : -1], j, axes, lanes)
        tile, reduction, panels = _nest_sum(sch, sch.get_sblock("sum"), work_item, axes, plan, lanes)
        many, shifted = sum(axis.tiled for axis in axes), sum(axis.is_shifted for axis in axes)
        data = Data("data", "tiled_data", many, plan.block_k, shifted)
        transform_data(sch, data, problem.data_format, lanes, partition, in_parallel=plan.packs is Packs.BEFORE)
        _transform_filter(sch, problem, axes, plan, lanes, panels if plan.packs is Packs.BEFORE else [])
        schedule_zeros_and_bias(sch, expression)
        sch.parallel(work_item)
        sch.decompose_reduction(tile, reduction)
        module = apply_output_maps(sch.mod, expression, problem)
        return expression, module


def _nest_result(
    sch: Schedule, result: SBlockRV, axes: list[TiledAxis], plan: WinogradDataPlan, lanes: int, copied_to: str
) -> tuple[LoopRV, LoopRV]:
    """Split the result by images, positions and N; returns the loops inside of which data is transformed, and over work
    items. `copied_to` is the data format that rows are copied to, or "" if the result is not copied."""
    n, g, *y, j = sch.get_loops(result)
    sizes = [plan.partition[0], *(size * axis.covered // axis.runs for size, axis in zip(plan.partition[1:], axes))]
    parts = [sch.split(loop, [None, min(size, blocks.extent(sch, loop))]) for loop, size in zip([n, *y], sizes)]
    outer, inner = ([pieces[i] for pieces in parts] for i in (0, 1))
    n_partition, j = sch.split(j, [plan.n_partitions, None])
    sch.reorder(*outer, n_partition, g, *inner, j)
    if copied_to == "NCX":
        vectors, lane = sch.split(j, [None, lanes])
        sch.reorder(vectors, lane, inner[-1])
        sch.annotate(lane, TRANSPOSE, 1)
    elif copied_to:
        _, lane = sch.split(j, [None, plan.n])
        sch.annotate(lane, TRANSPOSE, 1)
    else:
        _nest_tiles(sch, inner[1:], j, axes, lanes)
        if plan.non_temporal:
            sch.annotate(g, NON_TEMPORAL, 1)
    if plan.packs is Packs.BEFORE:
        return sch.fuse(*outer), n_partition
    work_item = sch.fuse(*outer, n_partition)
    return work_item, work_item


def _nest_tiles(sch: Schedule, y: list[LoopRV], j: LoopRV, axes: list[TiledAxis], lanes: int) -> None:
    """Compute the results of a tile together, with vectors over N."""
    parts = [sch.split(loop, [None, axis.tile, axis.dilation]) if axis.tiled else [loop] for loop, axis in zip(y, axes)]
    beside, places = ([loop for part in parts for loop in part[first::2]] for first in (0, 1))
    vectors, lane = sch.split(j, [None, lanes])
    sch.reorder(*beside, vectors, *places, lane)
    transform_tile(sch, "untiled", vectors, places, lane)


def _nest_sum(
    sch: Schedule, total: SBlockRV, work_item: LoopRV, axes: list[TiledAxis], plan: WinogradDataPlan, lanes: int
) -> tuple[SBlockRV, LoopRV, list[LoopRV]]:
    """The products of a work item, by register tiles. Returns the tile's block and its outermost loop over K, and the
    loops over panels: over N blocks, and over the products along the first tiled axis if there are two.

    If the work item transforms the filter, all products of one N block follow each other, since its panels were just
    made. Otherwise all N blocks of one product do, and share its data.
    """
    many, rank, block = sum(axis.tiled for axis in axes), len(axes), total
    if plan.k_cache_blocks > 1:
        cache_block, _ = sch.split(sch.get_loops(total)[-1], [plan.k_cache_blocks, None])
        block = sch.rfactor(cache_block, 0)
        sch.set_scope(block, 0, "local")
        sch.compute_at(total, work_item, preserve_unit_loops=True)
    count = len(sch.get_loops(block))
    sch.compute_at(block, work_item, preserve_unit_loops=True)
    loops = sch.get_loops(block)[-count:]
    cache_blocks, loops = loops[: plan.k_cache_blocks > 1], loops[plan.k_cache_blocks > 1 :]
    f, (n, *rest) = loops[:many], loops[many:]
    tiles, (j, *taps, s) = rest[:rank], rest[rank:]
    m_loops = [sch.split(loop, [None, size]) for loop, size in zip([n, *tiles], plan.m)]
    j0, j1 = sch.split(j, [None, plan.n])
    s0, s1 = sch.split(s, [None, plan.block_k])
    outer, inner = ([pieces[i] for pieces in m_loops] for i in (0, 1))
    panels = [j0, *f] if plan.packs is Packs.BEFORE else [*f, j0]
    sch.reorder(*panels, *outer, *cache_blocks, s0, *taps, s1, *inner, j1)
    written = total if cache_blocks else sch.cache_write(total, 0, "local")
    sch.reverse_compute_at(written, [*outer, *cache_blocks][-1], preserve_unit_loops=True)

    def by_blocks(*index: Index) -> tuple[Index, ...]:
        f, (n, *t, j) = index[:many], index[many:]
        return (n, *f, j // plan.n, *t, j % plan.n)

    blocks.transform_written(sch, written, by_blocks)
    blocks.vectorize_tile(sch, [*inner, j1], lanes)
    blocks.vectorize_tile(sch, sch.get_loops(written)[-rank - 2 :], lanes)
    return block, s0, [j0, *f[:-1]]


def _transform_filter(
    sch: Schedule, problem: Problem, axes: list[TiledAxis], plan: WinogradDataPlan, lanes: int, at: list[LoopRV]
) -> None:
    """Transform the filter into panels, each with all of K for one N block: all in parallel; or, inside of the loops
    `at`, those of a work item. It then packs all taps of an N block, and transforms them for one product along the
    first axis at a time, so that panels stay in L2."""
    many = sum(axis.tiled for axis in axes)
    block, source = sch.get_sblock("tiled_filter"), sch.get_sblock("filter")
    count = len(sch.get_loops(block))

    def by_panels(*index: Index) -> tuple[Index, ...]:
        *outer, s, j = index
        place = j // plan.n, s // plan.block_k
        return (*outer[:many], *place, *outer[many:], s % plan.block_k, j % plan.n)

    blocks.transform_written(sch, block, by_panels)
    if at:
        sch.compute_at(block, at[-1], preserve_unit_loops=True)
    *outer, s, j = sch.get_loops(block)[-count:]
    f, taps = outer[:many], outer[many:]
    j0, vectors, lane = sch.split(j, [None, plan.n // lanes, lanes])
    k_blocks = largest_divisor(blocks.extent(sch, s) // plan.block_k, K_BLOCKS)
    s_partition, s0, s1 = sch.split(s, [None, k_blocks, plan.block_k])
    sch.reorder(j0, s_partition, s0, *taps, s1, vectors, *f, lane)
    transform_tile(sch, "tiled_filter", vectors, f, lane)
    panel = sch.fuse(j0, s_partition)
    n_axis = "C" if problem.gradient is Gradient.DATA else "O"
    packed = FilterPanels(n_axis, plan.n, plan.block_k)
    pack_filter(sch, source, packed, problem.filter_axes, at[0] if at else panel)
    if not at:
        sch.parallel(panel)
