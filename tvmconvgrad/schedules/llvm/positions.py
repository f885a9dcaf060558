"""Data gradients and forward convolutions on a CPU: sums that have an element for each position.

Each is a matrix product whose rows are neighbouring positions along the last axis and whose columns are channels of
the result; taps and the other side's channels are summed:

    parallel (n, group block, residue, position range, column range)
      for column block, position outside the last axis, row block:
        tile = 0                                             # in registers
        for summed block, tap, summed channel: tile += data[rows + tap, summed] * panel[tap, summed, columns]
        sum[rows, columns] = tile

A panel (all taps and summed channels of one column block, packed in the order in which it is read) is used for a range
of positions while it is in the L2 cache. A strided data gradient has one such sum for each of its phases (te/data_gradient.py).

Lanes of the vectors are the result's channels, or, where a group has too few, the groups themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.llvm import blocks
from tvmconvgrad.schedules.llvm.machine import Machine
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, express
from tvmconvgrad.te.tensors import ceil_to, group_sizes

TASKS = 32
"""How many parallel tasks a sum should have at least: enough for many cores, few enough to stay large."""

SUMMED = 16
"""Channels that are summed in one run: a cache line of f32."""


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `positions` x `columns` channels of the result x `groups`; the last above 1 is the vector."""

    positions: int
    columns: int
    groups: int


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    summed: int


@dataclass(frozen=True)
class PositionsRule:
    """Data gradients and forward sums with vectors over `lanes`: "channels" (of the result) or "groups"."""

    machine: Machine
    lanes: str

    @property
    def name(self) -> str:
        return f"positions-{self.lanes}"

    def cost(self, problem: Problem) -> float | None:
        """Multiply-adds, padded ones included, over the share of peak that the tile reaches."""
        if problem.gradient is Gradient.FILTER or (self.lanes == "groups" and problem.geometry.groups == 1):
            return None
        return self._best_tile(problem)[0]

    def schedule(self, problem: Problem) -> Scheduled:
        plan = self.plan(problem)
        tile = plan.tile
        c, o = (tile.columns, plan.summed) if _columns_are_c(problem) else (plan.summed, tile.columns)
        expression = express(problem, Multiples(groups=tile.groups, c=c, o=o, position=tile.positions))
        sch = Schedule(expression.prim_func())
        if expression.sums:
            data, panels = expression.operands
            columns = "c" if _columns_are_c(problem) else "o"
            blocks.pack_data(sch, data, problem.data_format, plan.summed, tile.groups)
            blocks.pack_filter(sch, panels, (columns, tile.columns), plan.summed, tile.groups)
        for name in expression.sums:
            _schedule_sum(sch, sch.get_sblock(name), problem.geometry.rank, plan)
        blocks.finish_pass(sch, sch.get_sblock("result"))
        return Scheduled(expression, sch.mod, self.name, asdict(plan))

    def plan(self, problem: Problem) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        _, tile = self._best_tile(problem)
        _, summed = _channels(problem)
        return Plan(tile, min(summed, SUMMED))

    def _best_tile(self, problem: Problem) -> tuple[float, Tile]:
        return min((self._tile_cost(problem, tile), tile) for tile in self._tiles(problem))

    def _tiles(self, problem: Problem) -> list[Tile]:
        columns, _ = _channels(problem)
        lanes, registers = self.machine.lanes, self.machine.registers
        rows = range(1, registers)
        if self.lanes == "groups":
            few = [d for d in blocks.divisors(columns) if d <= registers]
            widths = [lanes, lanes // 2] if lanes > 4 else [lanes]
            tiles = [Tile(m, n, w) for m in rows for n in few for w in widths]
        else:
            widths = [lanes * n for n in (1, 2, 3, 4)] + ([lanes // 2] if lanes > 4 else []) + [4] * (lanes > 8)
            tiles = [Tile(m, n, 1) for m in rows for n in widths]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _efficiency(self, tile: Tile) -> float:
        if self.lanes == "groups":
            return self.machine.tile_efficiency(
                tile.positions * tile.columns, tile.positions + tile.columns, tile.groups
            )
        vector = min(tile.columns, self.machine.lanes)
        columns = tile.columns // vector
        return self.machine.tile_efficiency(tile.positions * columns, tile.positions + columns, vector)

    def _tile_cost(self, problem: Problem, tile: Tile) -> float:
        columns, summed = _channels(problem)
        positions = _row_length(problem)
        padded = ceil_to(positions, tile.positions) * ceil_to(columns, tile.columns) * summed
        return padded * ceil_to(problem.geometry.groups, tile.groups) / self._efficiency(tile)


def _columns_are_c(problem: Problem) -> bool:
    return problem.gradient is Gradient.DATA


def _channels(problem: Problem) -> tuple[int, int]:
    """(channels of the result, summed channels), of one group."""
    c, o = group_sizes(problem.geometry)
    return (c, o) if _columns_are_c(problem) else (o, c)


def _row_length(problem: Problem) -> int:
    """Positions along the last axis; of a phase, in a strided data gradient."""
    geometry = problem.geometry
    if problem.gradient is Gradient.FORWARD:
        return geometry.x[-1]
    return -(-geometry.y[-1] // geometry.strides[-1])


def _schedule_sum(sch: Schedule, block: SBlockRV, rank: int, plan: Plan) -> None:
    """Nest the loops as the module's text says."""
    tile = plan.tile
    copy = sch.cache_write(block, 0, "local")
    loops = sch.get_loops(block)
    taps_at = len(loops) - rank - 1
    n, g, *middle, column = loops[:taps_at]
    *taps, summed = loops[taps_at:]
    residues, positions = middle[:-rank], middle[-rank:]
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.columns])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    summed0, summed1 = sch.split(summed, [None, plan.summed])
    outer = [n, g0, *residues]
    ranges, inner = _position_ranges(sch, outer, positions[:-1], row0)
    tasks = prod(blocks.extent(sch, loop) for loop in [*outer, *ranges])
    factor = blocks.largest_divisor(blocks.extent(sch, column0), -(-TASKS // tasks))
    column_range, column0 = sch.split(column0, [factor, None])
    register_tile = [row1, column1, g1]
    sch.reorder(*outer, *ranges, column_range, column0, *inner, summed0, *taps, summed1, *register_tile)
    blocks.vectorize_tile(sch, block, register_tile)
    sch.reverse_compute_at(copy, inner[-1], preserve_unit_loops=True)
    blocks.vectorize_tile(sch, copy, sch.get_loops(copy)[-(rank + 1) :])
    sch.parallel(sch.fuse(*outer, *ranges, column_range))
    sch.decompose_reduction(block, summed0)


def _position_ranges(sch, outer, positions, row0):  # type: ignore[no-untyped-def]
    """Split the positions into ranges, for parallel tasks, and what is left inside of each."""
    tasks = prod(blocks.extent(sch, loop) for loop in outer)
    ranges, inner = [], []
    for loop in [*positions, row0]:
        factor = blocks.largest_divisor(blocks.extent(sch, loop), -(-TASKS // tasks))
        tasks *= factor
        outside, inside = sch.split(loop, [factor, None])
        ranges.append(outside)
        inner.append(inside)
    return ranges, inner
