"""Filter gradients on a CPU.

The sum over (n, *x) is a matrix product for every tap, of channels c of Y with channels o of X. One register tile holds
c x o partial sums over a chunk of positions that stays in the cache, then adds them to memory:

    parallel (split, group block, o range, c range)   # `split`: a fixed share of the chunks, with a result of its own
      for chunk:                                      # positions whose packed channels fit the L2 cache
        for o block, c block, tap:
          tile = 0                                    # in registers
          for position in chunk: tile += Y[position + tap, c] * X[position, o]
          partial[split] += tile
    result = sum over splits                          # in a fixed order: the bits don't depend on the threads

Lanes of the vectors are channels o, or c where o are few, or, where a group has few of both, the groups themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import TypeVar

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.llvm import blocks
from tvmconvgrad.schedules.llvm.machine import F32_BYTES, Machine
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, express
from tvmconvgrad.te.tensors import ceil_to, group_sizes

T = TypeVar("T")

TASKS = 16
"""How many parallel tasks a kernel should have at least: enough for many cores, few enough to stay large."""


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `taps` of the last axis x `c` x `o` channels x `groups`, with vectors over `lanes`."""

    taps: int
    c: int
    o: int
    groups: int
    lanes: str

    def loops(self, taps: T, c: T, o: T, groups: T) -> list[T]:
        """The tile's loops in their order, the vector's last."""
        return {"o": [taps, c, o, groups], "c": [taps, o, c, groups], "groups": [taps, c, o, groups]}[self.lanes]


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    c_block: int
    o_block: int
    """How many channels are packed together."""
    chunk: tuple[int, ...]
    splits: int
    o_ranges: int
    c_ranges: int

    @property
    def packs_chunks(self) -> bool:
        """Whether a task packs its chunks itself; not where several tasks would pack the same."""
        return self.o_ranges == self.c_ranges == 1


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
        """Multiply-adds, padded ones included, over the share of peak that the tile reaches."""
        if problem.gradient is not Gradient.FILTER or (self.lanes == "groups" and problem.geometry.groups == 1):
            return None
        return self._best_tile(problem)[0]

    def schedule(self, problem: Problem) -> Scheduled:
        """The program that the module's text describes, with the numbers of `plan`."""
        plan = self.plan(problem)
        tile = plan.tile
        expression = express(problem, Multiples(groups=tile.groups, c=tile.c, o=tile.o))
        sch = Schedule(expression.prim_func())
        nest = _nest_sum(sch, problem.geometry.rank, plan, self.machine.lanes)
        at = nest.chunk if plan.packs_chunks else None
        for name, channels in zip(expression.operands, (plan.c_block, plan.o_block)):
            blocks.pack_data(sch, sch.get_sblock(name), problem.data_format, channels, tile.groups, at)
        sch.parallel(sch.fuse(*nest.tasks))
        sch.decompose_reduction(nest.tile, nest.position)
        blocks.finish_pass(sch, sch.get_sblock(expression.result), self.machine.lanes)
        return Scheduled(expression, sch.mod, self.name, asdict(plan))

    def plan(self, problem: Problem) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        _, tile = self._best_tile(problem)
        geometry = problem.geometry
        c_group, o_group = (ceil_to(size, m) for size, m in zip(group_sizes(geometry), (tile.c, tile.o)))
        bytes_per_position = F32_BYTES * tile.groups * (c_group + o_group)
        limit = min(max(self.machine.l2 // 2 // bytes_per_position, 64), 1024)
        extents = (geometry.batch, *geometry.x)
        chunk = blocks.inner_extents(extents, limit)
        chunks = prod(extents) // prod(chunk)
        group_blocks = ceil_to(geometry.groups, tile.groups) // tile.groups
        filter_bytes = F32_BYTES * group_blocks * tile.groups * c_group * o_group * prod(geometry.k)
        operand_bytes = F32_BYTES * (prod(problem.y_shape) + prod(problem.x_shape))
        splits = blocks.largest_divisor(chunks, min(-(-TASKS // group_blocks), operand_bytes // (4 * filter_bytes)))
        wanted = max(1, TASKS // (group_blocks * splits))
        o_ranges = blocks.largest_divisor(o_group // tile.o, wanted)
        c_ranges = blocks.largest_divisor(c_group // tile.c, -(-wanted // o_ranges))
        c_block, o_block = (self._block(tile, *sizes) for sizes in ((tile.c, c_group), (tile.o, o_group)))
        return Plan(tile, c_block, o_block, tuple(chunk), splits, o_ranges, c_ranges)

    def _block(self, tile: Tile, size: int, channels: int) -> int:
        """How many channels are packed together where a tile reads `size` of them: at least a whole vector where that
        suits the tile, since they are copied that way; the tile then reads its part of it."""
        lanes = self.machine.lanes
        return lanes if tile.groups == 1 and lanes % size == 0 and channels % lanes == 0 else size

    def _best_tile(self, problem: Problem) -> tuple[float, Tile]:
        """The cheapest tile and its cost; of equally cheap ones that with the least surplus, in work and memory."""
        sized = [(self._padded_size(problem, tile), tile) for tile in self._tiles(problem)]
        cost, _, tile = min((size / self._efficiency(tile), size, tile) for size, tile in sized)
        return cost, tile

    def _tiles(self, problem: Problem) -> list[Tile]:
        c_group, o_group = group_sizes(problem.geometry)
        lanes, registers = self.machine.lanes, self.machine.registers
        taps = [1, problem.geometry.k[-1]] if problem.geometry.k[-1] <= registers else [1]
        halves = sorted({lanes, max(lanes // 2, 4)})
        sizes: list[tuple[int, int, int]]
        if self.lanes == "groups":
            few_c, few_o = ([d for d in blocks.divisors(size) if d <= registers] for size in (c_group, o_group))
            sizes = [(c, o, w) for c in few_c for o in few_o for w in halves]
        else:
            widths = [*halves, *(lanes * n for n in (2, 3, 4))]
            few = range(1, min(o_group if self.lanes == "c" else c_group, registers) + 1)
            sizes = [(w, n, 1) if self.lanes == "c" else (n, w, 1) for n in few for w in widths]
        tiles = [Tile(t, *size, self.lanes) for t in taps for size in sizes]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _efficiency(self, tile: Tile) -> float:
        """Y's operands are read for each tap, X's once."""
        if tile.lanes == "groups":
            return self.machine.tile_efficiency(tile.taps * tile.c, tile.o, tile.groups)
        vector = min(tile.o if tile.lanes == "o" else tile.c, self.machine.lanes)
        c, o = (tile.c, tile.o // vector) if tile.lanes == "o" else (tile.c // vector, tile.o)
        return self.machine.tile_efficiency(tile.taps * c, o, vector)

    @staticmethod
    def _padded_size(problem: Problem, tile: Tile) -> int:
        """Multiply-adds, but for a factor that all tiles share."""
        c_group, o_group = group_sizes(problem.geometry)
        return ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o) * ceil_to(problem.geometry.groups, tile.groups)


@dataclass(frozen=True)
class Nest:
    """The loops of a tile: over parallel tasks, over chunks, and the outermost over the positions of a chunk."""

    tile: SBlockRV
    tasks: list[LoopRV]
    chunk: LoopRV
    position: LoopRV


def _nest_sum(sch: Schedule, rank: int, plan: Plan, lanes: int) -> Nest:
    """Split the sum over positions into splits, chunks and what a register tile adds up."""
    total = sch.get_sblock("sum")
    positions = sch.get_loops(total)[3 + rank :]
    parts = [sch.split(loop, [None, inner]) for loop, inner in zip(positions, plan.chunk)]
    sch.reorder(*(outer for outer, _ in parts), *(inner for _, inner in parts))
    chunks = sch.fuse(*(outer for outer, _ in parts))
    partial = total
    if plan.splits > 1:
        split, chunks = sch.split(chunks, [plan.splits, None])
        partial = sch.rfactor(split, 0)
        chunks = sch.get_loops(partial)[4 + rank]
        _sum_splits(sch, total, plan.tile, lanes)
    tile = sch.rfactor(chunks, 0)
    sch.set_scope(tile, 0, "local")
    for block in (total, partial, tile) if plan.splits > 1 else (total, tile):
        # Their first axes are splits and chunks; g and c lie behind those.
        g = len(sch.get(block).writes[0].region) - rank - 3
        blocks.lanes_last(sch, block, g, plan.tile.groups)
        blocks.lanes_last(sch, block, g + rank + 1, plan.tile.c if plan.tile.lanes == "c" else 1)
    return _nest_tile(sch, rank, plan, lanes, tile, partial)


def _nest_tile(sch: Schedule, rank: int, plan: Plan, lanes: int, tile: SBlockRV, partial: SBlockRV) -> Nest:
    """Nest the loops as the module's text says."""
    g, *rest = sch.get_loops(tile)
    k, (c, o), rest = rest[:rank], rest[rank : rank + 2], rest[rank + 2 :]
    split = rest[:1] if plan.splits > 1 else []
    chunk, *positions = rest[len(split) :]
    g0, g1 = sch.split(g, [None, plan.tile.groups])
    c_range, c0, c1 = sch.split(c, [plan.c_ranges, None, plan.tile.c])
    o_range, o0, o1 = sch.split(o, [plan.o_ranges, None, plan.tile.o])
    k0, k1 = sch.split(k[-1], [None, plan.tile.taps])
    tasks = [*split, g0, o_range, c_range]
    register_tile = plan.tile.loops(k1, c1, o1, g1)
    sch.reorder(*tasks, chunk, o0, c0, *k[:-1], k0, *positions, *register_tile)
    blocks.vectorize_tile(sch, register_tile, lanes)
    sch.reverse_compute_at(partial, k0, preserve_unit_loops=True)
    group, *outer, tap, c, o = sch.get_loops(partial)[-(rank + 3) :]
    added = plan.tile.loops(tap, c, o, group)
    sch.reorder(*outer, *added)
    blocks.vectorize_tile(sch, added, lanes)
    return Nest(tile, tasks, chunk, positions[0])


def _sum_splits(sch: Schedule, total: SBlockRV, tile: Tile, lanes: int) -> None:
    """Add the splits up, in their order, along the axis that lies innermost in memory."""
    g, *k, c, o, split = sch.get_loops(total)
    inner = tile.loops(k[-1], c, o, g)[-1]
    row, vector = sch.split(inner, [None, blocks.largest_divisor(blocks.extent(sch, inner), lanes)])
    rows = [loop for loop in (g, *k, c, o) if loop is not inner]
    sch.reorder(*rows, row, split, vector)
    blocks.vectorize_tile(sch, [vector], lanes)
    sch.parallel(sch.fuse(*rows, row))
