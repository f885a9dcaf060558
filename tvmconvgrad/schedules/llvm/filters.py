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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TypeVar

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.llvm import blocks
from tvmconvgrad.schedules.llvm.machine import F32_BYTES, Machine
from tvmconvgrad.schedules.placing import place
from tvmconvgrad.schedules.skipping import skip
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, express
from tvmconvgrad.te.tensors import ceil_to, group_sizes

T = TypeVar("T")

TASKS = 16
"""How many parallel tasks a kernel should have at least: enough for many cores, few enough to stay large."""

PACKING = 0.7
"""Cycles an element to pack data in whole vectors: about what memory takes."""

TRANSPOSING = 1.5
"""Cycles an element to pack it against the memory's order."""

FINISHING = 3.0
"""Cycles an element to bring a filter from the tiles' order into the user's."""

GROUPING = 1.0
"""Cycles an element to pack groups of several channels, which lie apart."""

VECTORS_OF_TAPS = (0.5, 0.5)
"""Parts of an FMA that operands cost where vectors are over c: those of Y are other ones for each tap."""

FEW_CHANNELS = 4
"""Where there are fewer, taps share a tile, too. Elsewhere that gains nothing, and LLVM mixes the positions up."""

BEST_TILES = 8
"""How many tiles a search may choose from."""

LEAST_CHUNK = 32
"""Positions of a chunk, at least: each chunk adds its tiles to memory."""


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `taps` x `c` x `o` channels x `groups`, with vectors over `lanes`."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    groups: int
    lanes: str

    def loops(self, taps: Sequence[T], c: T, o: T, groups: T) -> list[T]:
        """The tile's loops in their order, the vector's last."""
        channels = {"o": [c, o, groups], "c": [o, c, groups], "groups": [c, o, groups]}
        return [*taps, *channels[self.lanes]]


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    c_block: int
    o_block: int
    """How many channels are packed together; 0 where the data is read where it lies."""
    packs: str
    """Where data is packed: "task" by task, or "before" all tasks, where too many tasks would pack the same."""
    chunk: tuple[int, ...]
    splits: int
    g_ranges: int
    o_ranges: int
    c_ranges: int


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
        return min(self._cost(problem, tile) for tile in self._tiles(problem))

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `plan`."""
        decisions = Decisions(given or {})
        plan = self.plan(problem, decisions)
        tile = plan.tile
        direct = self._writes_result(problem, tile)
        expression = express(problem, Multiples(groups=tile.groups, c=tile.c, o=tile.o, direct=direct))
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        nest = _nest_sum(sch, problem.geometry.rank, plan, self.machine.lanes, direct)
        at = nest.packing if plan.packs == "task" else None
        for name, channels in zip(expression.operands, (plan.c_block, plan.o_block)):
            if channels:
                blocks.pack_data(
                    sch, sch.get_sblock(name), problem.data_format, channels, tile.groups, self.machine.lanes, at
                )
            else:
                sch.compute_inline(sch.get_sblock(name))
        sch.parallel(sch.fuse(*nest.tasks))
        sch.decompose_reduction(nest.tile, nest.position)
        result = None if direct else sch.get_sblock("result")
        if result is not None and tile.lanes == "o" and problem.filter_axes.endswith("X"):
            blocks.transposing_pass(sch, result, problem.filter_axes.index("O"))
        elif result is not None:
            blocks.finish_pass(sch, result, self.machine.lanes)
        module = place(skip(sch.mod, expression), expression, problem.output_shape)
        return Scheduled(expression, module, self.name, asdict(plan), decisions.candidates)

    @staticmethod
    def _writes_result(problem: Problem, tile: Tile) -> bool:
        """Whether tiles are added up in the result itself: f32, nothing rounded up, vectors along its memory."""
        c_group, o_group = group_sizes(problem.geometry)
        whole = c_group % tile.c == 0 and o_group % tile.o == 0
        return problem.dtype == "f32" and problem.filter_axes.endswith(tile.lanes.upper()) and whole

    def plan(self, problem: Problem, decisions: Decisions) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        tiles = self._best_tiles(problem)
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        geometry = problem.geometry
        c_group, o_group = (ceil_to(size, m) for size, m in zip(group_sizes(geometry), (tile.c, tile.o)))
        c_block, o_block = self._blocks(problem, tile)
        extents = (geometry.batch, *geometry.x)
        limits = [LEAST_CHUNK << power for power in range(6)]
        chunk = blocks.inner_extents(extents, decisions.draw("chunk", limits, self._chunk(problem, tile)))
        chunks = prod(extents) // prod(chunk)
        group_blocks = ceil_to(geometry.groups, tile.groups) // tile.groups
        filter_elements = group_blocks * tile.groups * c_group * o_group * prod(geometry.k)
        y_elements, x_elements = prod(problem.y_shape), prod(problem.x_shape)

        def ranges(name: str, count: int, wanted: int) -> int:
            return decisions.draw(name, blocks.divisors(count), blocks.largest_divisor(count, wanted))

        # Splits cost memory and its traffic: not more than half of that of the operands.
        splits = ranges("splits", chunks, min(TASKS, (y_elements + x_elements) // (2 * filter_elements)))
        g_ranges = ranges("g_ranges", group_blocks, TASKS // splits)
        wanted = TASKS // (g_ranges * splits)
        o_ranges = ranges("o_ranges", o_group // tile.o, wanted)
        c_ranges = ranges("c_ranges", c_group // tile.c, -(-wanted // o_ranges))
        packed = y_elements * o_ranges + x_elements * c_ranges
        packs = "task" if packed <= 2 * (y_elements + x_elements) else "before"
        return Plan(tile, c_block, o_block, packs, tuple(chunk), splits, g_ranges, o_ranges, c_ranges)

    def _chunk(self, problem: Problem, tile: Tile) -> int:
        """How many positions are a chunk: what is packed stays in the L2 cache, what is read in place in L1."""
        geometry = problem.geometry
        c_group, o_group = group_sizes(geometry)
        if tile.groups > 1:
            swept = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
            if c_group * o_group > 1:
                return self.machine.l2 // 2 // (F32_BYTES * tile.groups * (c_group * swept + o_group))
            return max(self._l1_positions(tile.groups * swept), LEAST_CHUNK)
        in_place, packed = 0, 0
        for channels, block in zip((c_group, o_group), self._blocks(problem, tile)):
            in_place, packed = (in_place, packed + channels) if block else (in_place + channels, packed)
        limit = self.machine.l2 // 2 // (F32_BYTES * packed) if packed else 1024
        limit = min(max(limit, 128), 1024)
        return min(limit, self._l1_positions(in_place)) if in_place else limit

    def _l1_positions(self, channels: int) -> int:
        """How many positions fit the L1 cache with a little left, each of so many channels."""
        return int(0.85 * self.machine.l1) // (F32_BYTES * channels)

    def _blocks(self, problem: Problem, tile: Tile) -> tuple[int, int]:
        """How many channels of Y, and of X, are packed together where a tile reads c and o of them; 0: none.

        At least a whole vector where that suits the tile, since they are copied that way. In a matrix product, data
        whose chunk fits L1 as it lies is not packed.
        """
        c_group, o_group = group_sizes(problem.geometry)
        lanes = self.machine.lanes

        def packed(size: int, channels: int) -> int:
            return lanes if tile.groups == 1 and lanes % size == 0 and channels % lanes == 0 else size

        c_block, o_block = packed(tile.c, c_group), packed(tile.o, o_group)
        if tile.lanes == "groups" and problem.data_format == "NXC" and problem.dtype == "f32":
            # Lanes side by side in memory are read where they lie; that a position is a pad holds for all of them. Y is
            # worth a copy without the pads where it is read for several blocks of taps.
            whole = problem.geometry.groups % tile.groups == 0
            once = whole and tile.taps == problem.geometry.k
            return 0 if once and c_group == 1 else c_block, 0 if whole and o_group == 1 else o_block
        if not _is_product(problem) or c_group % tile.c or o_group % tile.o:
            return c_block, o_block
        if self._l1_positions(c_group + o_group) >= LEAST_CHUNK:
            return 0, 0
        c_fits, o_fits = (self._l1_positions(size) >= 2 * LEAST_CHUNK for size in (c_group, o_group))
        return (0, o_block) if c_fits else (c_block, 0) if o_fits else (c_block, o_block)

    def _best_tiles(self, problem: Problem) -> list[Tile]:
        """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
        costs = [(self._cost(problem, tile), _products(problem, tile), tile) for tile in self._tiles(problem)]
        return [tile for *_, tile in sorted(costs)[:BEST_TILES]]

    def _cost(self, problem: Problem, tile: Tile) -> float:
        """Cycles of one core, about: of the products, and of packing."""
        computing = _products(problem, tile) / (2 * self.machine.lanes * self._efficiency(tile))
        shapes, sizes = (problem.y_shape, problem.x_shape), group_sizes(problem.geometry)
        for shape, channels, block in zip(shapes, sizes, self._blocks(problem, tile)):
            computing += self._packing(problem, tile, channels, block) * prod(shape)
        return computing + (0.0 if self._writes_result(problem, tile) else FINISHING * prod(problem.filter_shape))

    def _packing(self, problem: Problem, tile: Tile, channels: int, block: int) -> float:
        """Cycles an element to pack blocks of so many channels."""
        if block == 0:
            return 0.0
        if problem.data_format == "NCX":
            return TRANSPOSING
        if tile.groups > 1 and channels > 1:
            return GROUPING
        run = blocks.largest_divisor(tile.groups * block, self.machine.lanes)
        return max(PACKING, 8 / run)

    def _tiles(self, problem: Problem) -> list[Tile]:
        c_group, o_group = group_sizes(problem.geometry)
        lanes, registers = self.machine.lanes, self.machine.registers
        *outer, last = problem.geometry.k
        ones = (1,) * len(outer)
        taps = {(*ones, 1)}
        if self.lanes == "groups" or min(c_group, o_group) < FEW_CHANNELS:
            taps |= {(*ones, last), (*outer, last)}
        halves = sorted({lanes, max(lanes // 2, 4)})
        sizes: list[tuple[int, int, int]]
        if self.lanes == "groups":
            few_c, few_o = ([d for d in blocks.divisors(size) if d <= registers] for size in (c_group, o_group))
            sizes = [(c, o, w) for c in few_c for o in few_o for w in halves]
        else:
            widths = [*halves, *(lanes * n for n in (2, 3, 4, 6))]
            few = range(1, min(o_group if self.lanes == "c" else c_group, registers) + 1)
            sizes = [(w, n, 1) if self.lanes == "c" else (n, w, 1) for n in few for w in widths]
        tiles = [Tile(t, *size, self.lanes) for t in sorted(taps) for size in sizes]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _efficiency(self, tile: Tile) -> float:
        """Y's operands are read for each tap, X's once."""
        taps = prod(tile.taps)
        if tile.lanes == "groups":
            return self.machine.tile_efficiency(taps * tile.c, tile.o, tile.groups)
        vector = min(tile.o if tile.lanes == "o" else tile.c, self.machine.lanes)
        if tile.lanes == "o":
            return self.machine.tile_efficiency(taps * tile.c, tile.o // vector, vector)
        return self.machine.tile_efficiency(tile.o, taps * tile.c // vector, vector, VECTORS_OF_TAPS)


def _is_product(problem: Problem) -> bool:
    """Whether the sum is a plain matrix product of f32 rows of channels."""
    geometry = problem.geometry
    numbers = (*geometry.k, *geometry.strides, geometry.groups)
    pads = (*geometry.pads_begin, *geometry.pads_end)
    plain = problem.data_format == "NXC" and problem.dtype == "f32" and geometry.x == geometry.y
    return plain and max(numbers) == 1 and not any(pads)


def _products(problem: Problem, tile: Tile) -> int:
    """Multiply-adds, with all that is rounded up."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o) * ceil_to(geometry.groups, tile.groups)
    taps = prod(ceil_to(k, t) for k, t in zip(geometry.k, tile.taps))
    return channels * taps * geometry.batch * prod(geometry.x)


@dataclass(frozen=True)
class Nest:
    """The loops of a tile: over parallel tasks, that inside of which is packed, and the outermost over the positions of
    a chunk."""

    tile: SBlockRV
    tasks: list[LoopRV]
    packing: LoopRV
    position: LoopRV


def _nest_sum(sch: Schedule, rank: int, plan: Plan, lanes: int, direct: bool) -> Nest:
    """Split the sum over positions into splits, chunks and what a register tile adds up; `direct`ly into the result."""
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
    stored = [tile, *([partial] if plan.splits > 1 else []), *([] if direct else [total])]
    for block in stored:
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
    g_range, g0, g1 = sch.split(g, [plan.g_ranges, None, plan.tile.groups])
    c_range, c0, c1 = sch.split(c, [plan.c_ranges, None, plan.tile.c])
    o_range, o0, o1 = sch.split(o, [plan.o_ranges, None, plan.tile.o])
    k0, k1 = zip(*(sch.split(loop, [None, taps]) for loop, taps in zip(k, plan.tile.taps)))
    tasks = [*split, g_range, o_range, c_range]
    register_tile = plan.tile.loops(k1, c1, o1, g1)
    sch.reorder(*tasks, chunk, g0, o0, c0, *k0, *positions, *register_tile)
    blocks.vectorize_tile(sch, register_tile, lanes)
    sch.reverse_compute_at(partial, k0[-1], preserve_unit_loops=True)
    group, *taps, c, o = sch.get_loops(partial)[-(rank + 3) :]
    added = plan.tile.loops(taps, c, o, group)
    sch.reorder(*added)
    blocks.vectorize_tile(sch, added, lanes)
    return Nest(tile, tasks, g0 if plan.tile.groups > 1 else chunk, positions[0])


def _sum_splits(sch: Schedule, total: SBlockRV, tile: Tile, lanes: int) -> None:
    """Add the splits up, in their order, along the axis that lies innermost in memory."""
    g, *k, c, o, split = sch.get_loops(total)
    inner = tile.loops(k, c, o, g)[-1]
    row, vector = sch.split(inner, [None, blocks.largest_divisor(blocks.extent(sch, inner), lanes)])
    rows = [loop for loop in (g, *k, c, o) if loop is not inner]
    sch.reorder(*rows, row, split, vector)
    blocks.vectorize_tile(sch, [vector], lanes)
    sch.parallel(sch.fuse(*rows, row))
