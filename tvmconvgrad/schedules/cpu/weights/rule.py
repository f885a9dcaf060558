"""Filter gradients on a CPU.

The sum over (n, *x) is a matrix product for every tap, of channels c of Y with channels o of X. One register tile holds
c x o partial sums over a chunk of positions that stays in the cache, then adds them to memory:

    parallel (split, group range, c and o range)      # `split`: a fixed share of the chunks, with a result of its own
      for chunk:                                      # positions of which what a tile reads fits the L1 cache
        for group block, o block, c block, tap:
          tile = 0                                    # in registers
          for position in chunk: tile += Y[position + tap, c] * X[position, o]
          partial[split] += tile
    result = sum over splits                          # in a fixed order: the bits don't depend on the threads

Y and X are packed, for a chunk or before all tasks, or read where they lie: in matrix products whose rows are short or
of whose Y few tiles read a row, with vectors over groups, and X, which has no pads, where few tiles read it. Without
splits the tiles are added up in the result itself where its type and its order of axes are theirs, and a tile fetches
its part of a big filter before it begins; else in memory of the task, which brings its part of the filter into the
user's type and order when all chunks are in it. Each position fetches what a later one reads
(schedules/transforms/prefetch.py): of the next chunk, where that is read in place, and of the next block of Y, where
that lies packed in memory. What is packed for the next chunk is fetched meanwhile
(schedules/transforms/software_pipelining.py).

Where the CPU multiplies pairs of bf16 (tir/passes/pairs.py), operands keep their 16 bits, and a step of a tile adds up
the same position of two images, which are packed side by side. Of an odd number of images, halves are taken for images;
if their rows are odd, too, the middle one belongs to both, with half of its weight.

Lanes of the vectors are channels o, or c where o are few or c lies innermost in the filter, or, where a group has few
of both, the groups themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import gcd, prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, Machine
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.blocks import FilterNest
from tvmconvgrad.schedules.cpu.weights.access import Tile
from tvmconvgrad.schedules.cpu.weights.plan import Plan, Planner
from tvmconvgrad.schedules.cpu.weights.work_items import adds_far
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import place
from tvmconvgrad.schedules.transforms.padding_elision import skip
from tvmconvgrad.schedules.transforms.prefetch import EACH, FETCH, LINE, fetch, fetch_results
from tvmconvgrad.schedules.transforms.software_pipelining import overlap
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import express
from tvmconvgrad.te.tensors import group_sizes


@dataclass(frozen=True)
class FilterRule:
    """Filter gradients with vectors over `lanes`: channels "o" of X, "c" of Y, or "groups"."""

    machine: Machine
    lanes: str

    @property
    def name(self) -> str:
        """`filter-` and what the vectors are over."""
        return f"filter-{self.lanes}"

    def cost(self, problem: Problem) -> float | None:
        """Cycles of one core, about."""
        if problem.gradient is not Gradient.FILTER or (self.lanes == "groups" and problem.geometry.groups == 1):
            return None
        return Planner(self.machine, self.lanes, problem).least_cost()

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `Planner.plan`."""
        decisions = Decisions(given or {})
        planner = Planner(self.machine, self.lanes, problem)
        plan = planner.plan(decisions)
        tile = plan.tile
        access = planner.access(tile)
        direct, multiples = access.writes_result, access.multiples
        bare_axes = access.bare_axes if plan.packs[0] == "before" and plan.c_block else 0
        expression = express(
            problem, replace(multiples, direct=direct, blocks=(plan.c_block, plan.o_block), bare_axes=bare_axes)
        )
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        nest = _nest_sum(sch, problem, plan, self.machine.lanes, direct, access.pairs)
        ahead, shapes = _ahead(problem, plan.fetch), (problem.y_shape, problem.x_shape)
        for name, channels, where, distance, shape in zip(
            expression.operands, (plan.c_block, plan.o_block), plan.packs, ahead, shapes
        ):
            block, at = sch.get_sblock(name), nest.packing if where == "task" else None
            if channels:
                how = channels, tile.groups, self.machine.lanes, at, 2 if access.pairs else 1
                blocks.pack_data(sch, block, problem.data_format, *how, distance[0] * prod(shape[1 - len(distance) :]))
            else:
                sch.compute_inline(block)
        if not direct:
            task = nest.tasks[-1] if access.finishes_by_task(plan.splits, plan.ranges) else None
            self._finish(sch, problem, tile, task)
        blocks.fill_zeros(sch, expression)
        sch.parallel(sch.fuse(*nest.tasks))
        sch.decompose_reduction(nest.tile, nest.position)
        names = [tensor.op.name for tensor in expression.inputs]
        fetched = dict(zip(reversed(names) if problem.transposed else names, ahead)) if plan.fetch else {}
        if plan.fetches_blocks:
            fetched[expression.operands[0]] = [1, *[0] * (problem.geometry.rank + 3)]
        module = skip(fetch(sch.mod, fetched), expression)
        packed = zip(expression.operands, (plan.c_block, plan.o_block), plan.packs)
        if tile.groups == 1:
            module = overlap(module, [name for name, block, where in packed if block and where == "task"])
        module = place(module, expression, problem.output_shape)
        if direct and plan.splits == 1 and adds_far(access):
            module = fetch_results(module, "sum")
        return Scheduled(expression, module, self.name, asdict(plan), decisions.candidates)

    def _finish(self, sch: Schedule, problem: Problem, tile: Tile, task: LoopRV | None) -> None:
        """Bring the filter from the tiles' order, in which it lies by vectors, into the user's: all of it in parallel,
        or each task its part."""
        geometry, axes, result = problem.geometry, problem.filter_axes, sch.get_sblock("result")
        if task is not None:
            sch.reverse_compute_at(result, task, preserve_unit_loops=True)
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
        if task is None:
            sch.parallel(sch.fuse(*rows))


def _ahead(problem: Problem, positions: int) -> tuple[list[int], list[int]]:
    """How far ahead of a step Y, and X, are fetched, along the last axes in NXC: by whole rows, since a strided step
    does not read next what follows in memory."""
    geometry = problem.geometry
    rows, within = positions, [0]
    if geometry.rank > 1:
        rows, within = -(-positions // max(geometry.x[-1], 1)), [0, 0]
    return [rows * geometry.strides[-len(within)], *within], [rows, *within]


def _nest_sum(sch: Schedule, problem: Problem, plan: Plan, lanes: int, direct: bool, pairs: bool) -> FilterNest:
    """Split the sum over positions into splits, chunks and what a register tile adds up; `direct`ly into the result."""
    total, rank = sch.get_sblock("sum"), problem.geometry.rank
    positions, pair = sch.get_loops(total)[3 + rank :], []
    if pairs:
        positions[0], *pair = sch.split(positions[0], [None, 2])
    chunks = blocks.split_chunks(sch, positions, plan.chunk, pair)
    partial = total
    if plan.splits > 1:
        split, chunks = sch.split(chunks, [plan.splits, None])
        partial = sch.rfactor(split, 0)
        chunks = sch.get_loops(partial)[4 + rank]
        _sum_splits(sch, total, plan.tile, lanes)
    tile = sch.rfactor(chunks, 0)
    sch.set_scope(tile, 0, "local")
    for block in [tile, *([partial] if plan.splits > 1 else []), *([] if direct else [total])]:
        blocks.store_filter(sch, block, rank, "G" + problem.filter_axes, plan.tile.vector)
    return _nest_tile(sch, problem, plan, lanes, pairs, tile, partial)


def _nest_tile(
    sch: Schedule, problem: Problem, plan: Plan, lanes: int, pairs: bool, tile: SBlockRV, partial: SBlockRV
) -> FilterNest:
    """Nest the loops as the module's text says."""
    rank = problem.geometry.rank
    g, *rest = sch.get_loops(tile)
    k, (c, o), rest = rest[:rank], rest[rank : rank + 2], rest[rank + 2 :]
    split = rest[:1] if plan.splits > 1 else []
    chunk, *positions = rest[len(split) :]
    pair = [positions.pop()] if pairs else []
    g_range, g0, g1 = sch.split(g, [plan.g_ranges, None, plan.tile.groups])
    c_range, c0, c1 = sch.split(c, [plan.c_ranges, None, plan.tile.c])
    o_range, o0, o1 = sch.split(o, [plan.o_ranges, None, plan.tile.o])
    k0, k1 = zip(*(sch.split(loop, [None, taps]) for loop, taps in zip(k, plan.tile.taps)))
    # A thread takes neighbouring tasks: in the filter's order none writes beside another's lines, which a core would
    # fetch as well, maybe from a far one's cache.
    ranges = {"C": c_range, "O": o_range}
    tasks = [*split, g_range, *(ranges[axis] for axis in problem.filter_axes if axis in ranges)]
    register_tile = plan.tile.loops(k1, c1, o1, g1)
    sch.reorder(*tasks, chunk, g0, o0, c0, *k0, *positions, *register_tile, *pair)
    vectors = blocks.vectorize_tile(sch, register_tile, lanes, pairs)
    sch.reverse_compute_at(partial, k0[-1], preserve_unit_loops=True)
    group, *taps, c, o = sch.get_loops(partial)[-(rank + 3) :]
    added = plan.tile.loops(taps, c, o, group)
    sch.reorder(*added)
    blocks.vectorize_tile(sch, added, lanes)
    if plan.fetch or plan.fetches_blocks:
        sch.annotate(positions[-1], FETCH, 1)
        if vectors is not None:
            sch.annotate(vectors, LINE, max(CACHE_LINE // (F32_BYTES * lanes), 1))
    if plan.fetch:
        for loop, taps, stride in zip(k1, plan.tile.taps, problem.geometry.strides):
            sch.annotate(loop, EACH, min(taps, stride))  # a step brings so many rows, and columns, of Y
    return FilterNest(tile, tasks, g0 if plan.tile.groups > 1 else chunk, positions[0])


def _sum_splits(sch: Schedule, total: SBlockRV, tile: Tile, lanes: int) -> None:
    """Add the splits up, in their order, along the axis that lies innermost in memory."""
    g, *k, c, o, split = sch.get_loops(total)
    inner = tile.loops(k, c, o, g)[-1]
    row, vector = sch.split(inner, [None, largest_divisor(blocks.extent(sch, inner), lanes)])
    rows = [loop for loop in (g, *k, c, o) if loop is not inner]
    sch.reorder(*rows, row, split, vector)
    blocks.vectorize_tile(sch, [vector], lanes)
    sch.parallel(sch.fuse(*rows, row))
