"""Filter gradients of few channels a group on a CPU, of data that lies by channels, position after position.

Vectors lie along positions, as the data does, so that nothing is transposed. A register tile holds a vector of partial
sums for each of several taps and pairs of channels, and so does memory: few channels, or those would not fit the cache:

    parallel (split, group range)        # `split`: a fixed share of the chunks, with a result of its own
      for chunk:                         # an image or a few, or as many of its rows as fit the cache
        for group:                       # in the order in which they lie in memory
          for channels, block of taps:
            tile = 0                     # in registers
            for rows, vector of positions along the last axis:
              tile[tap] += Y[positions + tap] * X[positions]
            sums[tap] += tile[tap]
      partial[split] = the lanes of each of the sums, added up
    result = sum over splits             # in a fixed order: the bits don't depend on the threads

A step of the innermost loop takes several rows of positions: a row of Y that is loaded for one of them meets the others
at other taps. Data of f32 is read where it lies and fetched ahead: masked loads put zeros in place of pads and of what
a row lacks to a whole vector, and lanes that a stride sets apart are picked from several loads (tir/passes/masking.py).
Other types, and data for machines without masked loads, are copied with the zeros; along a strided last axis, Y is then
copied residue by residue, so that vectors are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.blocks import FilterNest
from tvmconvgrad.schedules.cpu.weights_rows.plan import Plan, Planner
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.transforms.epilogue import place
from tvmconvgrad.schedules.transforms.padding_elision import skip
from tvmconvgrad.schedules.transforms.prefetch import EACH, FETCH, fetch
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Multiples, Sum, express
from tvmconvgrad.tir.annotations import MASK

FEW_LANES = 4
"""The lanes of a vector are added up in vectors of so many first."""


@dataclass(frozen=True)
class FilterPositionsRule:
    """Filter gradients with vectors over positions."""

    machine: Machine
    name: str = "filter-positions"

    def cost(self, problem: Problem) -> float | None:
        """Cycles of one core, about."""
        planner = Planner(self.machine, problem)
        return planner.least_cost() if planner.takes() else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `Planner.plan`."""
        decisions = Decisions(given or {})
        planner = Planner(self.machine, problem)
        plan = planner.plan(decisions)
        tile = plan.tile
        direct = problem.dtype == "f32"
        expression = express(
            problem, Multiples(c=tile.c, o=tile.o, position=tile.lanes, direct=direct, residues=not plan.in_place)
        )
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        nest = _nest_sum(sch, problem.geometry.rank, plan)
        for name in expression.operands:
            block = sch.get_sblock(name)
            if plan.in_place:
                sch.compute_inline(block)
            else:
                blocks.pack_data(sch, block, problem.data_format, 1, 1, self.machine.lanes, nest.packing)
        blocks.fill_zeros(sch, expression)
        sch.parallel(sch.fuse(*nest.tasks))
        sch.decompose_reduction(nest.tile, nest.position)
        if not direct:
            rows = blocks.finish_pass(sch, sch.get_loops(sch.get_sblock("result")), self.machine.lanes)
            sch.parallel(sch.fuse(*rows))
        module = fetch(sch.mod, {tensor.op.name: (plan.fetch, 0) for tensor in expression.inputs})
        module = skip(module, _along_rows(expression))
        module = place(module, expression, problem.output_shape)
        return Scheduled(expression, module, self.name, asdict(plan), decisions.candidates)


def _along_rows(expression: Sum) -> Sum:
    """The expression without the window of the last axis: of a vector's positions hardly ever all meet pads."""
    return replace(expression, windows=expression.windows[:-1])


def _nest_sum(sch: Schedule, rank: int, plan: Plan) -> FilterNest:
    """Split the sum over positions into splits, chunks, lanes and what a register tile adds up."""
    total = sch.get_sblock("sum")
    positions = sch.get_loops(total)[3 + rank :]
    vectors, lane = sch.split(positions[-1], [None, plan.tile.lanes])
    positions = [*positions[:-1], vectors]
    chunks = blocks.split_chunks(sch, positions, plan.chunk, [lane])
    adding, splits = total, int(plan.splits > 1)
    if splits:
        split, chunks = sch.split(chunks, [plan.splits, None])
        adding = sch.rfactor(split, 0)
        sch.parallel(sch.get_loops(total)[0])
        chunks, lane = sch.get_loops(adding)[4 + rank], sch.get_loops(adding)[-1]
    sums = sch.rfactor(lane, splits + rank + 3)
    chunks = sch.get_loops(sums)[3 + rank + splits]
    tile = sch.rfactor(chunks, 0)
    sch.set_scope(tile, 0, "local")
    return _nest_tile(sch, rank, plan, tile, sums, adding)


def _nest_tile(sch: Schedule, rank: int, plan: Plan, tile: SBlockRV, sums: SBlockRV, adding: SBlockRV) -> FilterNest:
    """Nest the loops as the module's text says."""
    g, *rest = sch.get_loops(tile)
    k, (c, o), rest = rest[:rank], rest[rank : rank + 2], rest[rank + 2 :]
    split = rest[:1] if plan.splits > 1 else []
    chunk, *positions, lane = rest[len(split) :]
    g_range, g0 = sch.split(g, [plan.g_ranges, None])
    c0, c1 = sch.split(c, [None, plan.tile.c])
    o0, o1 = sch.split(o, [None, plan.tile.o])
    k0, k1 = zip(*(sch.split(loop, [None, taps]) for loop, taps in zip(k, plan.tile.taps)))
    rows, row = sch.split(positions[-2], [None, plan.tile.rows])
    positions = [*positions[:-2], rows, positions[-1]]
    tasks = [*split, g_range]
    register_tile = [row, *k1, c1, o1, lane]
    sch.reorder(*tasks, chunk, g0, c0, o0, *k0, *positions, *register_tile)
    if plan.in_place:
        for loop in register_tile[:-1]:
            sch.unroll(loop)
        sch.annotate(lane, MASK, 1)
    else:
        blocks.vectorize_tile(sch, register_tile, plan.tile.lanes)
    if plan.whole_rows:
        sch.unroll(positions[-1])
    if plan.fetch:
        sch.annotate(positions[-1], FETCH, 1)
        for loop in (row, *k1[-2:-1]):
            sch.annotate(loop, EACH, blocks.extent(sch, loop))
    sch.reverse_compute_at(sums, k0[-1], preserve_unit_loops=True)
    lane, *taps = sch.get_loops(sums)[-len(sch.get(sums).writes[0].region) :]
    sch.reorder(*taps, lane)
    blocks.vectorize_tile(sch, [*taps, lane], plan.tile.lanes)
    _add_lanes(sch, adding, g_range)
    return FilterNest(tile, tasks, g0, positions[0])


def _add_lanes(sch: Schedule, adding: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a group's sums: first in vectors of a few, then those."""
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
