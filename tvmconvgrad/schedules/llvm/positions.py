"""Data gradients and forward convolutions on a CPU: sums that have an element for each position.

Each is a matrix product whose rows are neighbouring positions along the last axis and whose columns are channels of
the result; taps and the other side's channels are summed:

    parallel (n, residue, position range, group range, column range)
      for group block, column block, position outside the last axis, row block:
        tile = 0                                             # in registers
        for summed block, tap, summed channel: tile += data[rows + tap, summed] * panel[tap, summed, columns]
        sum[rows, columns] = tile

A panel (all taps and summed channels of one column block, packed in the order in which it is read) is used for a range
of positions while it is in the L2 cache. A strided data gradient has one such sum for each of its phases, see
te/data_gradient.py.

Lanes of the vectors are the result's channels; where a group has few, the groups themselves; or, where there are few
channels and no groups, the positions: the data then lies by channels, position after position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.llvm import blocks
from tvmconvgrad.schedules.llvm.blocks import largest_divisor
from tvmconvgrad.schedules.llvm.machine import Machine
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, Sum, express
from tvmconvgrad.te.tensors import ceil_to, group_sizes

TASKS = 32
"""How many parallel tasks a sum should have at least: enough for many cores, few enough to stay large."""

SUMMED = 16
"""Channels that are summed in one run: a cache line of f32."""


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `positions` x `columns` channels of the result x `groups`, with vectors over `lanes`."""

    positions: int
    columns: int
    groups: int
    lanes: str

    @property
    def vectors(self) -> tuple[int, int]:
        """The sides of the tile whose product is its vectors, times the vector's length."""
        if self.lanes == "positions":
            return self.columns, self.positions
        return self.positions, self.columns * self.groups


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    summed: int


@dataclass(frozen=True)
class PositionsRule:
    """Data gradients and forward sums with vectors over `lanes`: "channels" (of the result), "groups", "positions"."""

    machine: Machine
    lanes: str

    @property
    def name(self) -> str:
        """`positions-` and what the vectors are over."""
        return f"positions-{self.lanes}"

    def cost(self, problem: Problem) -> float | None:
        """Multiply-adds, padded ones included, over the share of peak that the tile reaches."""
        geometry = problem.geometry
        apart = problem.gradient is Gradient.FORWARD and geometry.strides[-1] > 1 and geometry.k[-1] > 1
        if problem.gradient is Gradient.FILTER or (self.lanes == "groups" and geometry.groups == 1):
            return None
        return None if self.lanes == "positions" and apart else self._best_tile(problem)[0]

    def schedule(self, problem: Problem) -> Scheduled:
        """The program that the module's text describes, with the numbers of `plan`."""
        plan = self.plan(problem)
        tile = plan.tile
        c, o = (tile.columns, plan.summed) if _columns_are_c(problem) else (plan.summed, tile.columns)
        expression = express(problem, Multiples(groups=tile.groups, c=c, o=o, position=tile.positions))
        sch = Schedule(expression.prim_func())
        if expression.sums:
            self._schedule_sums(sch, problem, expression, plan)
        if not self._writes_result(problem, expression, plan):
            strides = [1, *problem.geometry.strides] if problem.data_format == "NXC" else []
            blocks.finish_pass(sch, sch.get_sblock(expression.result), self.machine.lanes, strides)
        return Scheduled(expression, sch.mod, self.name, asdict(plan))

    def _schedule_sums(self, sch: Schedule, problem: Problem, expression: Sum, plan: Plan) -> None:
        tile = plan.tile
        direct = self._writes_result(problem, expression, plan)
        result = expression.result if direct else None
        rank, lanes = problem.geometry.rank, self.machine.lanes
        nests = [_nest_sum(sch, sch.get_sblock(name), rank, plan, lanes, result) for name in expression.sums]
        data, panels = (sch.get_sblock(name) for name in expression.operands)
        columns = "c" if _columns_are_c(problem) else "o"
        # With several sums, or several tasks for the same positions, each would pack the data anew.
        at = nests[0].tasks[-1] if len(nests) == 1 and blocks.extent(sch, nests[0].tasks[-1]) == 1 else None
        blocks.pack_data(sch, data, problem.data_format, plan.summed, tile.groups, at)
        blocks.pack_filter(sch, panels, (columns, tile.columns), plan.summed, tile.groups)
        for nest in nests:
            sch.parallel(sch.fuse(*nest.tasks))
            sch.decompose_reduction(nest.block, nest.reduction)

    @staticmethod
    def _writes_result(problem: Problem, expression: Sum, plan: Plan) -> bool:
        """Whether a tile goes straight to the result: where its vectors are all the result's.

        A condition on the lanes would take a vector apart, and the tile out of its registers.
        """
        columns, _ = _channels(problem)
        tile = plan.tile
        whole = columns % tile.columns == 0 and problem.geometry.groups % tile.groups == 0
        return expression.direct and whole and (tile.lanes != "positions" or _row_length(problem) % tile.positions == 0)

    def plan(self, problem: Problem) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        _, tile = self._best_tile(problem)
        _, summed = _channels(problem)
        return Plan(tile, 1 if self.lanes == "positions" else min(summed, SUMMED))

    def _best_tile(self, problem: Problem) -> tuple[float, Tile]:
        """The cheapest tile and its cost; of equally cheap ones that with the least surplus, in work and memory."""
        sized = [(self._padded_size(problem, tile), tile) for tile in self._tiles(problem)]
        cost, _, tile = min((size / self._efficiency(tile), size, tile) for size, tile in sized)
        return cost, tile

    def _tiles(self, problem: Problem) -> list[Tile]:
        columns, _ = _channels(problem)
        lanes, registers = self.machine.lanes, self.machine.registers
        few = [d for d in blocks.divisors(columns) if d <= registers]
        halves = sorted({lanes, max(lanes // 2, 4)})
        sizes: list[tuple[int, int, int]]
        if self.lanes == "groups":
            sizes = [(m, n, w) for m in range(1, registers) for n in few for w in halves]
        elif self.lanes == "positions":
            sizes = [(w * m, n, 1) for m in range(1, registers) for n in few for w in halves]
        else:
            widths = [*halves, *(lanes * n for n in (2, 3, 4))]
            sizes = [(m, n, 1) for m in range(1, registers) for n in widths]
        tiles = [Tile(*size, self.lanes) for size in sizes]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _efficiency(self, tile: Tile) -> float:
        rows, elements = tile.vectors
        lanes = largest_divisor(elements, self.machine.lanes) if tile.lanes != "groups" else tile.groups
        return self.machine.tile_efficiency(rows, elements // lanes, lanes)

    @staticmethod
    def _padded_size(problem: Problem, tile: Tile) -> int:
        """Multiply-adds, but for a factor that all tiles share."""
        columns, summed = _channels(problem)
        positions = _row_length(problem)
        padded = ceil_to(positions, tile.positions) * ceil_to(columns, tile.columns) * summed
        return padded * ceil_to(problem.geometry.groups, tile.groups)


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


@dataclass(frozen=True)
class Nest:
    """A sum's loops: those over parallel tasks, the last over column ranges, and the outermost that sums."""

    block: SBlockRV
    tasks: list[LoopRV]
    reduction: LoopRV


def _nest_sum(sch: Schedule, block: SBlockRV, rank: int, plan: Plan, lanes: int, result: str | None) -> Nest:
    """Nest the loops as the module's text says, and write tiles to `result`, if it is named."""
    tile = plan.tile
    copy = sch.cache_write(block, 0, "local")
    by_positions = tile.lanes == "positions"
    for written in (block, copy):
        blocks.lanes_last(sch, written, 1, tile.groups)
    blocks.lanes_last(sch, block, -2, tile.positions if by_positions else 1)
    *spatial, summed = sch.get_loops(block)
    spatial, taps = spatial[:-rank], spatial[-rank:]
    n, g, *middle, column = spatial
    residues, positions = middle[:-rank], middle[-rank:]
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.columns])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    summed0, summed1 = sch.split(summed, [None, plan.summed])
    outer = [n, *residues]
    ranges, inner = _split_ranges(sch, outer, [*positions[:-1], row0])
    group_range, g0 = _split_panels(sch, [*outer, *ranges], g0)
    column_range, column0 = _split_panels(sch, [*outer, *ranges, group_range], column0)
    tasks = [*outer, *ranges, group_range, column_range]
    register_tile = [g1, column1, row1] if by_positions else [row1, column1, g1]
    sch.reorder(*tasks, g0, column0, *inner, summed0, *taps, summed1, *register_tile)
    blocks.vectorize_tile(sch, register_tile, lanes)
    sch.reverse_compute_at(copy, inner[-1], preserve_unit_loops=True)
    if result is not None:
        # Only now: moving a block drops the condition that keeps a tile's surplus out of the result.
        sch.reverse_compute_inline(sch.get_sblock(result))
    image, group, *middle, row, column = sch.get_loops(copy)[-len(spatial) :]
    written_tile = [group, column, row] if by_positions else [row, column, group]
    sch.reorder(image, *middle, *written_tile)
    blocks.vectorize_tile(sch, written_tile, lanes)
    return Nest(block, tasks, summed0)


def _split_ranges(
    sch: Schedule, outer: Sequence[LoopRV], positions: Sequence[LoopRV]
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split the positions into ranges, enough for many tasks, and what is left inside of each."""
    tasks = prod(blocks.extent(sch, loop) for loop in outer)
    ranges, inner = [], []
    for loop in positions:
        factor = largest_divisor(blocks.extent(sch, loop), -(-TASKS // tasks))
        tasks *= factor
        outside, inside = sch.split(loop, [factor, None])
        ranges.append(outside)
        inner.append(inside)
    return ranges, inner


def _split_panels(sch: Schedule, outer: Sequence[LoopRV], panels: LoopRV) -> list[LoopRV]:
    """Split the blocks of groups or columns, too, where there are few tasks otherwise."""
    tasks = prod(blocks.extent(sch, loop) for loop in outer)
    factor = largest_divisor(blocks.extent(sch, panels), -(-TASKS // tasks))
    return list(sch.split(panels, [factor, None]))
