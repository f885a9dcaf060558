"""Data gradients and forward convolutions on a CPU: sums that have an element for each position.

Each is a matrix product whose rows are neighbouring positions along the last axis and whose columns are channels of
the result; taps and the other side's channels are summed:

    parallel (position range, group range, column range)
      for part, group block, column block:
        panel = filter[taps, part, columns]
        for image, position outside the last axis, row block:
          tile = 0                                             # in registers
          for summed block, tap, summed channel: tile += data[rows + tap, summed] * panel[tap, summed, columns]
          result[rows, columns] += tile

A panel (all taps and a part of the summed channels of one column block, packed in the order in which it is read) is
used for a range of positions while it is in the L2 cache; so is the range's data. A small tile adds several summed
channels in an iteration. There is one part, and a tile is written once, unless a panel would be too large for the
cache. A result of 16 bits, or in NCX, is then added up aside, in f32 and by channels, and brought into its type and
order when all parts are in it. Panels are packed before all tasks, or by the only task that uses them. Where the data
needs zeros or another type, it is packed, by each task or before all tasks; else it is read where it lies and, with
vectors over the result's channels, fetched ahead (schedules/transforms/prefetch.py); what is packed next is fetched
while products are summed (schedules/transforms/software_pipelining.py). With vectors over groups, a tile fetches the
lines that it will write, or, where a group has several channels, is transposed in registers to write these side by
side. Results that are large are stored past the caches (tir/passes/non_temporal.py). A tap at which all that a tile
reads are pads is left out (schedules/transforms/padding_elision.py).

A strided data gradient has one such sum for each combination of its phases, see te/data_gradient.py. Where all of them
have as many tasks, these are joined (schedules/transforms/task_fusion.py), and a joined task packs its data once for
all sums.

Where the CPU multiplies pairs of bf16 (tir/passes/pairs.py), operands keep their 16 bits, and a tile adds up two summed
channels at a time; in panels, these lie side by side for each column, and with vectors over groups for each group.

Lanes of the vectors are the result's channels; where a group has few, the groups themselves; or the positions, where
the data lies by channels, position after position; or the summed channels, where those lie side by side in both
operands: then neither is copied, which pays for big filters that few positions meet, and the lanes of a tile's sums are
added up at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.data.access import Access
from tvmconvgrad.schedules.cpu.data.plan import Plan, Planner
from tvmconvgrad.schedules.cpu.data.sizes import Tile, sizes_of
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.factors import inner_extents, largest_divisor
from tvmconvgrad.schedules.transforms.epilogue import place
from tvmconvgrad.schedules.transforms.padding_elision import skip
from tvmconvgrad.schedules.transforms.prefetch import EACH, FETCH, fetch, fetch_results
from tvmconvgrad.schedules.transforms.software_pipelining import overlap
from tvmconvgrad.schedules.transforms.task_fusion import join
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Sum, express
from tvmconvgrad.tir.annotations import STREAM, TRANSPOSE


@dataclass(frozen=True)
class PositionsRule:
    """Data gradients and forward sums with vectors over `lanes`: "channels" (of the result), "groups", "positions",
    or "summed" channels."""

    machine: Machine
    lanes: str

    @property
    def name(self) -> str:
        """`positions-` and what the vectors are over."""
        return f"positions-{self.lanes}"

    def cost(self, problem: Problem) -> float | None:
        """Cycles of one core, about."""
        if problem.gradient is Gradient.FILTER:
            return None
        planner = Planner(self.machine, self.lanes, sizes_of(problem))
        return planner.least_cost() if planner.takes() else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `Planner.plan`."""
        decisions = Decisions(given or {})
        sizes = sizes_of(problem)
        planner = Planner(self.machine, self.lanes, sizes)
        plan = planner.plan(decisions)
        access = planner.access(plan.tile)
        bare_axes = access.bare_axes if plan.packs == "before" else 0
        multiples = sizes.multiples(plan.tile, plan.summed, bare_axes, access.pairs)
        aside = access.adds_aside(plan.parts)
        expression = express(problem, replace(multiples, direct=plan.parts > 1 and not aside, aside=aside))
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        self._schedule_sums(sch, problem, expression, plan, access)
        blocks.fill_zeros(sch, expression)
        module = self._with_data(Schedule(join(sch.mod, expression.sums)), problem, expression, plan, access)
        module = skip(fetch(module, {expression.inputs[0].op.name: (plan.fetch, 0)}), expression)
        if plan.tile.groups == 1:
            where = [plan.packs, *[plan.packs_filter] * len(expression.operands[1:])]
            module = overlap(module, [name for name, each in zip(expression.operands, where) if each == "task"])
        module = place(module, expression, problem.output_shape)
        if self.lanes == "groups" and not access.transposes_result and not plan.streams:
            module = fetch_results(module)
        return Scheduled(expression, module, self.name, asdict(plan), decisions.candidates)

    def _schedule_sums(self, sch: Schedule, problem: Problem, expression: Sum, plan: Plan, access: Access) -> None:
        rank, lanes, tile = problem.geometry.rank, self.machine.lanes, plan.tile
        results = expression.summed
        nests = [_nest_sum(sch, sch.get_sblock(name), rank, plan, access) for name in expression.sums]
        aside = access.adds_aside(plan.parts)
        for nest, result in zip(nests, results):
            if access.transposes_result and not aside:
                _transpose_tile(sch, nest.written, rank, tile, problem.data_format)
            else:
                _write_tile(sch, nest.written, rank, plan, lanes, access.writes_rows)
            if aside:
                _write_range(sch, sch.get_sblock(result.op.name), nest.tasks[-1], rank, access)
        columns = "c" if problem.gradient is Gradient.DATA else "o"
        for panel, nest in zip(map(sch.get_sblock, expression.operands[1:]), nests):
            if plan.packs_filter:
                at = nest.column if plan.packs_filter == "task" else None
                width = columns, tile.columns
                run = 2 if access.pairs else 1
                blocks.pack_filter(sch, panel, width, plan.summed, tile.groups, problem.filter_axes, at, run)
            else:
                sch.compute_inline(panel)
        for nest in nests:
            sch.parallel(sch.fuse(*nest.tasks))
            sch.decompose_reduction(nest.block, nest.reduction)

    def _with_data(self, sch: Schedule, problem: Problem, expression: Sum, plan: Plan, access: Access) -> IRModule:
        """With the data packed where the plan says; in a task, once for all sums that are joined there."""
        data = sch.get_sblock(expression.operands[0])
        if not plan.packs:
            sch.compute_inline(data)
            return sch.mod
        total = sch.get_consumers(data)[0]
        at = sch.get_loops(total)[0] if plan.packs == "task" else None
        tile, run = plan.tile, 2 if access.pairs and plan.tile.groups > 1 else 1
        blocks.pack_data(sch, data, problem.data_format, plan.summed, tile.groups, self.machine.lanes, at, run=run)
        return sch.mod


@dataclass(frozen=True)
class Nest:
    """A sum's tile, the block that writes it, and loops: those over parallel tasks, that over a task's column blocks,
    and the outermost that sums."""

    block: SBlockRV
    written: SBlockRV
    tasks: list[LoopRV]
    column: LoopRV
    reduction: LoopRV


def _nest_sum(sch: Schedule, total: SBlockRV, rank: int, plan: Plan, access: Access) -> Nest:
    """Nest the loops as the module's text says, and write the tiles."""
    tile, block, lanes = plan.tile, total, access.machine.lanes
    if tile.lanes == "summed":
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        block = sch.rfactor(lane, rank + 3)
        sch.set_scope(total, 0, "local")
    if plan.parts > 1:
        part, _ = sch.split(sch.get_loops(block)[-1], [plan.parts, None])
        block, written = sch.rfactor(part, 0), total
    else:
        (written,) = sch.get_consumers(total)
    sch.set_scope(block, 0, "local")
    blocks.lanes_last(sch, block, 1, tile.groups)
    blocks.lanes_last(sch, block, -2, tile.positions if tile.lanes == "positions" else 1)
    (n, g, *positions, column), (*taps, summed), lane = _loops(sch, block, rank, tile.lanes == "summed")
    part = [taps.pop()] if plan.parts > 1 else []
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.columns])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    outer, register_rows = positions[:-1], []
    if tile.rows > 1:
        outer[-1], inner_row = sch.split(outer[-1], [None, tile.rows])
        register_rows = [inner_row]
    summing, pair = [*taps, summed], []
    if tile.lanes != "summed":
        block_of, run = sch.split(summed, [None, plan.summed])
        summing = [block_of, *taps, run]
        if access.pairs:
            summing[-1], *pair = sch.split(run, [None, 2])
        steps = largest_divisor(blocks.extent(sch, summing[-1]), access.steps)
        if steps > 1:
            summing[-1:] = sch.split(summing[-1], [None, steps])
            sch.unroll(summing[-1])
    rows = [n, *outer, row0]
    inner = inner_extents([blocks.extent(sch, loop) for loop in rows], plan.range_tiles)
    split = [sch.split(loop, [None, size]) for loop, size in zip(rows, inner)]
    ranges, rows = ([pieces[i] for pieces in split] for i in (0, 1))
    group_range, g0 = sch.split(g0, [plan.group_ranges, None])
    column_range, column0 = sch.split(column0, [largest_divisor(blocks.extent(sch, column0), plan.column_ranges), None])
    tasks = [*ranges, group_range, column_range]
    order = {"positions": [g1, column1, *register_rows, row1], "summed": [g1, row1, column1, *lane]}
    register_tile = order.get(tile.lanes, [row1, column1, g1])
    sch.reorder(*tasks, *part, g0, column0, *rows, *summing, *register_tile, *pair)
    blocks.vectorize_tile(sch, register_tile, lanes, access.pairs)
    if tile.lanes == "summed":
        _add_lanes(sch, total, rows[-1])
    sch.reverse_compute_at(written, rows[-1], preserve_unit_loops=True)
    if plan.fetch:
        sch.annotate(summing[0], FETCH, 1)
        sch.annotate(row1, EACH, tile.positions)
    return Nest(block, written, tasks, column0, summing[0])


def _transpose_tile(sch: Schedule, result: SBlockRV, rank: int, tile: Tile, data_format: str) -> None:
    """The loops that write a tile's vectors through their transposition, along positions or a group's channels."""
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = (channel, group) if tile.lanes == "groups" else (group, channel)
    along = row
    if data_format == "NXC":
        outer, along = row, channel
    sch.reorder(image, *middle, outer, lane, along)
    sch.unroll(outer)
    sch.annotate(lane, TRANSPOSE, 1)


def _write_tile(sch: Schedule, result: SBlockRV, rank: int, plan: Plan, lanes: int, by_rows: bool) -> None:
    """The loops that write a tile along its vectors; `by_rows`, of which parts may lie beyond an end."""
    tile = plan.tile
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    if plan.streams:
        sch.annotate(image, STREAM, 1)
    rows = [middle.pop()] if tile.rows > 1 else []
    written_tile = [group, channel, *rows, row] if tile.lanes == "positions" else [row, channel, group]
    sch.reorder(image, *middle, *written_tile)
    if by_rows:
        *outer, vector = [loop for loop in written_tile if tile.lanes == "positions" or loop is not group]
        for loop in outer:
            sch.unroll(loop)
        sch.annotate(vector, TRANSPOSE, 1)
    else:
        blocks.vectorize_tile(sch, written_tile, lanes)


def _write_range(sch: Schedule, result: SBlockRV, at: LoopRV, rank: int, access: Access) -> None:
    """Bring what a task has added up aside into the result's type and order, when all parts are in it."""
    sch.reverse_compute_at(result, at, preserve_unit_loops=True)
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = sch.split(channel, [None, access.tile.columns])
    if access.along:
        blocks.vectorize_tile(sch, [lane], access.machine.lanes)
    else:
        sch.reorder(image, *middle, group, outer, lane, row)
        sch.annotate(lane, TRANSPOSE, 1)


def _loops(
    sch: Schedule, block: SBlockRV, rank: int, lanes_are_summed: bool
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """(n, g, positions, column), (taps, summed channels), and the lane that was split from those, if any."""
    loops = sch.get_loops(block)
    spatial = rank + 3
    lane = [loops.pop()] if lanes_are_summed else []
    return loops[:spatial], loops[spatial:], lane


def _add_lanes(sch: Schedule, total: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a tile's sums."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    *_, row, column, lane = sch.get_loops(total)
    for loop in (row, column, lane):
        sch.unroll(loop)
