"""Filter gradients with three taps, by Winograd's algorithm (te/winograd.py), on a CPU.

For each of a tile's products, its sum over images and tiles is a matrix product, of channels c of Y with channels o of
X:

    parallel (split of the chunks)                      # where channels are few, and with them the sums
      for chunk of tiles:
        extend and transform Y and X                    # of the chunk; in parallel where there are no splits
        for product f:                                  # likewise
          for tap of other axes, o block, c block:
            tile = 0                                    # in registers
            for tile in chunk: tile += Y[f, tile, c] * X[f, tile, o]
            partial[split, f] += tile
    sum = sum over splits                               # in a fixed order
    result = transformed back                           # by vectors over o

What is transformed of a chunk stays near: in the cache of the core that takes a split, or of all cores, which take the
chunk's products. A vector of channels of a tile's 16 elements is loaded once, and all 16 products' operands follow from
it in registers, of which LLVM finds the common parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.blocks import FilterNest
from tvmconvgrad.schedules.cpu.winograd.sizes import WORTH
from tvmconvgrad.schedules.cpu.winograd.transforms import Data, together, transform_data
from tvmconvgrad.schedules.cpu.winograd.weights_plan import Plan, Planner
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.winograd import axes_of, tiled_filter_gradient
from tvmconvgrad.tir.annotations import TRANSPOSE


@dataclass(frozen=True)
class WinogradFilterRule:
    """Filter gradients by tiles of X."""

    machine: Machine
    name = "winograd-filter"

    def cost(self, problem: Problem) -> float | None:
        """Cycles of one core, about, and as much more as it must be worth."""
        planner = Planner(self.machine, problem)
        return WORTH * planner.least_cost() if planner.takes() else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `Planner.plan`."""
        decisions = Decisions(given or {})
        planner = Planner(self.machine, problem)
        plan = planner.plan(decisions)
        multiples = Multiples(c=plan.c_block, o=plan.o)
        axes = axes_of(problem, plan.multiples)
        expression = tiled_filter_gradient(problem, multiples, axes, planner.copies_result)
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        lanes, many = self.machine.lanes, sum(axis.tiled for axis in axes)
        nest = _nest_sum(sch, many, plan, lanes)
        for side, block in (("y", plan.c_block), ("x", plan.o)):
            data = Data(f"{side}_data", f"tiled_{side}", many, block)
            transform_data(sch, data, problem.data_format, lanes, nest.packing, in_parallel=plan.splits == 1)
        _nest_result(sch, problem, planner.copies_result, lanes)
        sch.parallel(sch.fuse(*nest.tasks))
        sch.decompose_reduction(nest.tile, nest.position)
        return Scheduled(expression, sch.mod, self.name, asdict(plan), decisions.candidates)


def _nest_sum(sch: Schedule, many: int, plan: Plan, lanes: int) -> FilterNest:
    """Split the sum into splits, chunks and register tiles, and nest the loops as the module's text says."""
    total, rank = sch.get_sblock("sum"), len(plan.chunk) - 1
    positions = sch.get_loops(total)[rank + 2 :]
    chunks = blocks.split_chunks(sch, positions, plan.chunk)
    partial = total
    if plan.splits > 1:
        split, chunks = sch.split(chunks, [plan.splits, None])
        partial = sch.rfactor(split, 0)
        chunks = sch.get_loops(partial)[rank + 3]
        _sum_splits(sch, total, lanes)
    tile = sch.rfactor(chunks, 0)
    sch.set_scope(tile, 0, "local")
    loops = sch.get_loops(tile)
    f, taps, (c, o), loops = loops[:many], loops[many:rank], loops[rank : rank + 2], loops[rank + 2 :]
    split, (chunk, *positions) = loops[: plan.splits > 1], loops[plan.splits > 1 :]
    c0, c1 = sch.split(c, [None, plan.c])
    o0, o1 = sch.split(o, [None, plan.o])
    sch.reorder(*split, chunk, *f, *taps, o0, c0, *positions, c1, o1)
    blocks.vectorize_tile(sch, [c1, o1], lanes)
    sch.reverse_compute_at(partial, c0, preserve_unit_loops=True)
    blocks.vectorize_tile(sch, sch.get_loops(partial)[-2:], lanes)
    return FilterNest(tile, split or f, chunk, positions[0])


def _sum_splits(sch: Schedule, total: SBlockRV, lanes: int) -> None:
    """Add the splits up, in their order, by vectors over o."""
    *rows, o, split = sch.get_loops(total)
    vector, lane = sch.split(o, [None, lanes])
    sch.reorder(*rows, vector, split, lane)
    sch.vectorize(lane)
    sch.parallel(sch.fuse(*rows, vector))


def _nest_result(sch: Schedule, problem: Problem, is_copied: bool, lanes: int) -> None:
    """Transform the sums back, by vectors over o; and copy them where the filter lies otherwise."""
    result, axes, rank = sch.get_sblock("result"), problem.filter_axes, problem.geometry.rank
    loops = sch.get_loops(result)
    if not is_copied:
        sch.parallel(sch.fuse(*_nest_taps(sch, loops, lanes)))
        return
    if axes.endswith("O"):  # rows, of which the last vector is cut
        spread = axes.replace("X", "X" * rank)
        task = loops[spread.index("C")]
        sch.reorder(task, *(loop for loop, axis in zip(loops, spread) if axis == "X"))
        sch.annotate(loops[-1], TRANSPOSE, 1)
    else:
        before = axes[: axes.index("O")].replace("X", "X" * rank)
        task = sch.fuse(*blocks.transposing_pass(sch, loops, len(before), largest_divisor(problem.geometry.o, lanes)))
    untiled = sch.get_sblock("untiled")
    sch.compute_at(untiled, task, preserve_unit_loops=True)
    _nest_taps(sch, sch.get_loops(untiled)[1:], lanes)
    sch.parallel(task)


def _nest_taps(sch: Schedule, loops: Sequence[LoopRV], lanes: int) -> list[LoopRV]:
    """All taps of a vector of channels together; the loops over channels and vectors are returned."""
    *taps, c, o = loops
    vector, lane = sch.split(o, [None, largest_divisor(blocks.extent(sch, o), lanes)])
    sch.reorder(c, vector, *taps, lane)
    together(sch, taps, lane)
    return [c, vector]
