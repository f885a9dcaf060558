"""Data gradients and forward convolutions on a CPU: sums that have an element for each position.

Each is a matrix product whose rows are neighbouring positions along the last axis and whose columns are channels of
the result; taps and the other side's channels are summed:

    parallel (position range, group range, column range)
      for group block, column block, image, position outside the last axis, row block:
        tile = 0                                             # in registers
        for summed block, tap, summed channel: tile += data[rows + tap, summed] * panel[tap, summed, columns]
        result[rows, columns] = tile

A panel (all taps and summed channels of one column block, packed in the order in which it is read) is used for a range
of positions while it is in the L2 cache; so is the range's data, which a task packs, too, where it needs zeros or
another type, and else reads where it lies. A strided data gradient has one such sum for each combination of its phases,
see te/data_gradient.py; they share the packed data.

Lanes of the vectors are the result's channels; where a group has few, the groups themselves; or the positions, where
the data lies by channels, position after position; or the summed channels, where those lie side by side in both
operands: then neither is copied, which pays for big filters that few positions meet, and the lanes of a tile's sums are
added up at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.joining import join
from tvmconvgrad.schedules.llvm import blocks
from tvmconvgrad.schedules.llvm.blocks import largest_divisor
from tvmconvgrad.schedules.llvm.machine import CACHE_LINE, F32_BYTES, Machine
from tvmconvgrad.schedules.placing import place
from tvmconvgrad.schedules.skipping import skip
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, Sum, data_is_plain, express, filter_is_plain
from tvmconvgrad.te.data_gradient import parts
from tvmconvgrad.te.tensors import ceil_to, group_sizes

TASKS = 32
"""How many parallel tasks a sum should have at least: enough for many cores, few enough to stay large."""

BEST_TILES = 8
"""How many tiles a search may choose from."""

SUMMED = 16
"""Channels that are summed in one run: a cache line of f32."""

SURPLUS = 1.6
"""How much more data than there is may be packed, before it is better packed once, by all threads, through memory."""

PACKING, PLACING = 0.7, 0.5
"""Cycles an element to pack data, and to write results, in whole vectors: about what memory takes."""

FEW_ROWS = 256
"""How many positions a panel must serve to be worth a copy without being transposed."""

ADDING_LANES = 12.0
"""Cycles an element to add up the lanes of its sum."""

TRANSPOSING, SCATTERING = 1.5, 3.0
"""Cycles an element to pack and to write against the memory's order."""


PANELS, LOADING_IN_PLACE = (0.15, 0.35), (0.35, 0.35)
LOADING = {"positions": (0.15, 0.7), "summed": (1.0, 1.0)}
"""What a row's and a column's operand costs, as parts of an FMA.

Panels come from the L2 cache; data read in place comes from there, too, or from memory; vectors over positions cross
cache lines; and with lanes that are summed both operands are whole vectors from the L2 cache.
"""


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `positions` x `columns` channels of the result x `groups`, with vectors over `lanes`."""

    positions: int
    columns: int
    groups: int
    lanes: str

    def vectors(self, lanes: int) -> tuple[int, int, int]:
        """(rows, columns, lanes used) in vectors of so many lanes; rows and columns are loaded for their products."""
        if self.lanes == "summed":
            return self.positions, self.columns, lanes
        rows, elements = (
            (self.columns, self.positions)
            if self.lanes == "positions"
            else (self.positions, self.columns * self.groups)
        )
        used = self.groups if self.lanes == "groups" else largest_divisor(elements, lanes)
        return rows, elements // used, used


@dataclass(frozen=True)
class Size:
    """The extents of one sum, of one group, before they are rounded up to a tile."""

    positions: tuple[int, ...]
    columns: int
    products: int
    """Taps and channels that are summed for each element."""


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    summed: int
    packs: str
    """Where the data is packed: "task", "before" all tasks, or not at all: ""."""
    packs_filter: bool
    range_tiles: int
    """How many row blocks a range of positions should have."""
    group_ranges: int
    column_ranges: int


@dataclass(frozen=True)
class Sizes:
    """What the numbers of a schedule depend on."""

    problem: Problem

    @cached_property
    def sums(self) -> list[Size]:
        """All sums."""
        geometry = self.problem.geometry
        if self.problem.gradient is Gradient.FORWARD:
            return [Size(geometry.x, self.columns, self.summed * prod(geometry.k))]
        found = parts(self.problem, Multiples())
        return [Size(tuple(part.positions), part.channels, self.summed * part.taps) for part in found]

    @property
    def columns(self) -> int:
        """Channels of the result, of one group."""
        c, o = group_sizes(self.problem.geometry)
        return c if self.problem.gradient is Gradient.DATA else o

    @property
    def summed(self) -> int:
        """Channels that are summed, of one group."""
        c, o = group_sizes(self.problem.geometry)
        return o if self.problem.gradient is Gradient.DATA else c

    @property
    def halo(self) -> list[int]:
        """How many more elements of the data a range reads along each axis than it has positions."""
        geometry = self.problem.geometry
        if self.problem.gradient is Gradient.FORWARD:
            return [(k - 1) * d // s for k, d, s in zip(geometry.k, geometry.dilations, geometry.strides)]
        found = parts(self.problem, Multiples())
        return [
            max((p.phases[axis].taps - 1) * p.phases[axis].dilation for p in found) for axis in range(geometry.rank)
        ]

    def multiples(self, tile: Tile, summed: int) -> Multiples:
        """What the tensor expression is rounded up to."""
        by_c = self.problem.gradient is Gradient.DATA
        c, o = (tile.columns, summed) if by_c else (summed, tile.columns)
        return Multiples(tile.groups, c, o, tile.positions)

    def products(self, tile: Tile) -> int:
        """Multiply-adds, with all that is rounded up."""
        geometry = self.problem.geometry
        groups = geometry.batch * ceil_to(geometry.groups, tile.groups)
        return groups * sum(
            prod(size.positions[:-1])
            * ceil_to(size.positions[-1], tile.positions)
            * ceil_to(size.columns, tile.columns)
            * size.products
            for size in self.sums
        )


@dataclass(frozen=True)
class Ranges:
    """A way to split the positions into ranges."""

    tiles: int
    tasks: int
    surplus: float
    """How much more data the ranges read than there is: neighbours read the same at their border."""
    traffic: float
    """Bytes that come from beyond the L2 cache, about."""


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
        """Cycles of one core, about."""
        geometry = problem.geometry
        apart = problem.gradient is Gradient.FORWARD and geometry.strides[-1] > 1 and geometry.k[-1] > 1
        if problem.gradient is Gradient.FILTER or (self.lanes == "groups" and geometry.groups == 1):
            return None
        if (self.lanes == "positions" and apart) or (self.lanes == "summed" and not self._may_sum_lanes(problem)):
            return None
        sizes = Sizes(problem)
        return min(self._cost(sizes, tile) for tile in self._tiles(sizes))

    def _may_sum_lanes(self, problem: Problem) -> bool:
        """Whether the summed channels lie side by side in the data and in the filter, in whole vectors."""
        sizes = Sizes(problem)
        last = "O" if problem.gradient is Gradient.DATA else "C"
        beside = problem.data_format == "NXC" and problem.filter_axes.endswith(last)
        tile = Tile(1, 1, 1, self.lanes)
        return beside and bool(sizes.sums) and filter_is_plain(problem, sizes.multiples(tile, self.machine.lanes))

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `plan`."""
        decisions = Decisions(given or {})
        plan = self.plan(problem, decisions)
        expression = express(problem, Sizes(problem).multiples(plan.tile, plan.summed))
        sch = Schedule(expression.prim_func())
        decisions.record(sch)
        if expression.sums:
            self._schedule_sums(sch, problem, expression, plan)
        if len(expression.results) > len(expression.sums):
            blocks.fill_pass(sch, sch.get_sblock("zero"))
        module = join(sch.mod, expression.sums)
        if expression.sums:
            module = self._with_data(Schedule(module), problem, expression, plan)
        module = place(skip(module, expression), expression, problem.output_shape)
        return Scheduled(expression, module, self.name, asdict(plan), decisions.candidates)

    def _schedule_sums(self, sch: Schedule, problem: Problem, expression: Sum, plan: Plan) -> None:
        rank, lanes, tile = problem.geometry.rank, self.machine.lanes, plan.tile
        results = expression.results[-len(expression.sums) :]
        nests = [
            _nest_sum(sch, sch.get_sblock(name), sch.get_sblock(result.op.name), rank, plan, lanes)
            for name, result in zip(expression.sums, results)
        ]
        columns = "c" if problem.gradient is Gradient.DATA else "o"
        for panel in map(sch.get_sblock, expression.operands[1:]):
            if plan.packs_filter:
                blocks.pack_filter(sch, panel, (columns, tile.columns), plan.summed, tile.groups, problem.filter_axes)
            else:
                sch.compute_inline(panel)
        for nest in nests:
            sch.parallel(sch.fuse(*nest.tasks))
            sch.decompose_reduction(nest.block, nest.reduction)

    def _with_data(self, sch: Schedule, problem: Problem, expression: Sum, plan: Plan) -> IRModule:
        """With the data packed where the plan says; in a task, once for all sums that are joined there."""
        data = sch.get_sblock(expression.operands[0])
        if not plan.packs:
            sch.compute_inline(data)
            return sch.mod
        total = sch.get_consumers(data)[0]
        at = sch.get_loops(total)[0] if plan.packs == "task" else None
        blocks.pack_data(sch, data, problem.data_format, plan.summed, plan.tile.groups, self.machine.lanes, at)
        return sch.mod

    def plan(self, problem: Problem, decisions: Decisions) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        sizes = Sizes(problem)
        tiles = self._best_tiles(sizes)
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        in_place = self._reads_in_place(sizes, tile)
        group_blocks = self._group_blocks(sizes, tile)
        column_blocks = max((-(-size.columns // tile.columns) for size in sizes.sums), default=1)
        ranges = self._ranges(sizes, tile, in_place)
        range_tiles = decisions.draw("range_tiles", [4 << power for power in range(8)], ranges.tiles)
        group_ranges = decisions.draw(
            "group_ranges", blocks.divisors(group_blocks), largest_divisor(group_blocks, -(-TASKS // ranges.tasks))
        )
        wanted = -(-TASKS // (ranges.tasks * group_ranges))
        column_ranges = decisions.draw(
            "column_ranges", blocks.divisors(column_blocks), largest_divisor(column_blocks, wanted)
        )
        alone = column_ranges == 1 and ranges.surplus <= SURPLUS
        packs = "" if in_place else "task" if alone else "before"
        packs_filter = not self._reads_filter_in_place(sizes, tile)
        summed = self._run(sizes, in_place)
        return Plan(tile, summed, packs, packs_filter, range_tiles, group_ranges, column_ranges)

    def _ranges(self, sizes: Sizes, tile: Tile, in_place: bool) -> Ranges:
        """The ranges with the least traffic from beyond the L2 cache; of those, the largest of which there are enough.

        A range reads every panel, and its data for every column block, from wherever they fit.
        """
        if not sizes.sums:
            return Ranges(1, 1, 1.0, 0.0)
        largest = max(sizes.sums, key=lambda size: prod(size.positions))
        extents = [sizes.problem.geometry.batch, *largest.positions]
        extents[-1] = ceil_to(extents[-1], tile.positions) // tile.positions
        limits = {prod(extents) // part for part in range(1, min(prod(extents), 8 * TASKS) + 1)}
        inners = {tuple(blocks.inner_extents(extents, limit)) for limit in limits}
        found = [self._range(sizes, tile, in_place, extents, inner) for inner in sorted(inners)]
        least = min(ranges.traffic for ranges in found)
        best = [ranges for ranges in found if ranges.traffic <= 1.1 * least]
        enough = [ranges for ranges in best if ranges.tasks * self._group_blocks(sizes, tile) >= TASKS]
        return max(enough, key=lambda r: r.tiles) if enough else min(best, key=lambda r: r.tiles)

    @staticmethod
    def _group_blocks(sizes: Sizes, tile: Tile) -> int:
        return ceil_to(sizes.problem.geometry.groups, tile.groups) // tile.groups

    def _range(self, sizes: Sizes, tile: Tile, in_place: bool, extents: Sequence[int], inner: Sequence[int]) -> Ranges:
        geometry = sizes.problem.geometry
        covered = [*inner[:-1], inner[-1] * tile.positions]
        read = prod(size + halo for size, halo in zip(covered, [0, *sizes.halo]))
        surplus = 1.0 if in_place else read / prod(covered)
        tasks = prod(extents) // prod(inner)
        columns = max(-(-size.columns // tile.columns) for size in sizes.sums)
        data, filter_ = (F32_BYTES * prod(shape) for shape in sizes.problem.input_shapes)
        fits = F32_BYTES * read * geometry.groups * sizes.summed <= self.machine.l2
        times = 1 if fits else max(columns, 2)
        if not in_place and (surplus > SURPLUS or tasks * self._group_blocks(sizes, tile) < TASKS):
            surplus, times = 1.0, times + 2  # packed before all tasks: to memory, and from there
        stays = filter_ <= self.machine.l2 // 2
        traffic = data * surplus * times + filter_ * (1 if stays else tasks)
        return Ranges(prod(inner), tasks, read / prod(covered), traffic)

    def _run(self, sizes: Sizes, in_place: bool) -> int:
        """How many channels are summed in one run."""
        if self.lanes == "positions":
            return 1
        if self.lanes == "summed":
            return self.machine.lanes
        return largest_divisor(sizes.summed, SUMMED) if in_place else min(sizes.summed, SUMMED)

    def _best_tiles(self, sizes: Sizes) -> list[Tile]:
        """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
        costs = [(self._cost(sizes, tile), sizes.products(tile), tile) for tile in self._tiles(sizes)]
        return [tile for *_, tile in sorted(costs)[:BEST_TILES]]

    def _cost(self, sizes: Sizes, tile: Tile) -> float:
        """Cycles of one core, about: of the products, and of moving data and results."""
        problem = sizes.problem
        along = (problem.data_format == "NXC") != (tile.lanes == "positions")
        in_place = self._reads_in_place(sizes, tile)
        computing = sizes.products(tile) / (2 * self.machine.lanes * self._efficiency(tile, in_place))
        packing = PACKING if along and (tile.lanes != "groups" or sizes.summed == 1) else TRANSPOSING
        if in_place:
            packing = 0.0
        elif len(sizes.sums) > 1:
            packing *= 2  # once to memory for all sums, and from there
        placing = PLACING if along and _whole_vectors(sizes, tile, self.machine.lanes) else SCATTERING
        if tile.lanes == "summed":
            placing += ADDING_LANES
        data, weights = problem.input_shapes
        panels = 0.0 if self._reads_filter_in_place(sizes, tile) else self._packing_filter(problem, tile)
        return computing + packing * prod(data) + panels * prod(weights) + placing * prod(problem.output_shape)

    @staticmethod
    def _packing_filter(problem: Problem, tile: Tile) -> float:
        """Cycles an element."""
        column = "C" if problem.gradient is Gradient.DATA else "O"
        along = tile.lanes == "channels" and problem.filter_axes.endswith(column)
        return PACKING if along else TRANSPOSING

    def _reads_filter_in_place(self, sizes: Sizes, tile: Tile) -> bool:
        """Whether the filter is read where it lies: where its lanes are side by side, and few rows share a panel."""
        if tile.lanes == "summed":
            return True
        problem = sizes.problem
        column = "C" if problem.gradient is Gradient.DATA else "O"
        if tile.lanes != "channels" or not problem.filter_axes.endswith(column):
            return False
        rows = problem.geometry.batch * max(prod(size.positions) for size in sizes.sums)
        return rows < FEW_ROWS and filter_is_plain(problem, sizes.multiples(tile, self._run(sizes, True)))

    def _reads_in_place(self, sizes: Sizes, tile: Tile) -> bool:
        """Whether the data is read where it lies: it is f32, needs no zeros, the tile's order is the memory's, and its
        rows, where they are far apart, don't displace each other from the cache."""
        problem = sizes.problem
        by_channels = problem.data_format == "NXC"
        if problem.dtype != "f32" or not by_channels or tile.lanes in ("groups", "positions"):
            return False
        data, _ = problem.input_shapes
        if tile.lanes == "channels" and by_channels and tile.positions > self.machine.rows_apart(F32_BYTES * data[-1]):
            return False
        return data_is_plain(problem, sizes.multiples(tile, self._run(sizes, True)))

    def _tiles(self, sizes: Sizes) -> list[Tile]:
        lanes, registers = self.machine.lanes, self.machine.registers
        columns = {size.columns for size in sizes.sums} or {sizes.columns}
        few = sorted({d for count in columns for d in blocks.divisors(count) if d <= registers})
        halves = sorted({lanes, max(lanes // 2, 4)})
        shapes: list[tuple[int, int, int]]
        if self.lanes == "groups":
            shapes = [(m, n, w) for m in range(1, registers) for n in few for w in halves]
        elif self.lanes == "summed":
            fitting = [n for n in few if all(count % n == 0 for count in columns)]
            shapes = [(m, n, 1) for m in range(1, registers) for n in fitting]
        elif self.lanes == "positions":
            shapes = [(w * m, n, 1) for m in range(1, registers) for n in few for w in halves]
        else:
            widths = [*halves, *(lanes * n for n in (2, 3, 4, 6))]
            shapes = [(m, n, 1) for m in range(1, registers) for n in widths]
        tiles = [Tile(*shape, self.lanes) for shape in shapes]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _efficiency(self, tile: Tile, in_place: bool = False) -> float:
        rows, columns, used = tile.vectors(self.machine.lanes)
        if tile.lanes == "groups":
            # Each sum has data of its own, which LLVM keeps for the next tap; and the sums are short.
            fits = rows * (columns + 1) < self.machine.registers
            return self.machine.tile_efficiency(rows, columns, used, PANELS, enough=6) if fits else 0.0
        costs = LOADING_IN_PLACE if in_place else LOADING.get(tile.lanes, PANELS)
        return self.machine.tile_efficiency(rows, columns, used, costs)


def _whole_vectors(sizes: Sizes, tile: Tile, lanes: int) -> bool:
    """Whether the vectors of a tile are neighbours in the result's memory, and none goes beyond it."""
    geometry = sizes.problem.geometry
    if tile.lanes == "groups":
        return sizes.columns == 1 and geometry.groups % tile.groups == 0
    if tile.lanes == "positions":
        stride = geometry.strides[-1] if sizes.problem.gradient is Gradient.DATA else 1
        return stride == 1 and all(size.positions[-1] % tile.positions == 0 for size in sizes.sums)
    if tile.lanes == "summed":
        return True
    if geometry.groups > 1 and sizes.columns * F32_BYTES % CACHE_LINE:
        return False  # groups share a line, which comes and goes for each of them
    vector = largest_divisor(tile.columns, lanes)
    return all(
        size.columns % tile.columns == 0 and (size.columns == sizes.columns or sizes.columns % vector == 0)
        for size in sizes.sums
    )


@dataclass(frozen=True)
class Nest:
    """A sum's loops: those over parallel tasks, the last over column ranges, and the outermost that sums."""

    block: SBlockRV
    tasks: list[LoopRV]
    reduction: LoopRV


def _nest_sum(sch: Schedule, block: SBlockRV, result: SBlockRV, rank: int, plan: Plan, lanes: int) -> Nest:
    """Nest the loops as the module's text says, and write tiles to `result`."""
    tile = plan.tile
    total = block
    if tile.lanes == "summed":
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        block = sch.rfactor(lane, rank + 3)
        sch.set_scope(total, 0, "local")
    sch.set_scope(block, 0, "local")
    blocks.lanes_last(sch, block, 1, tile.groups)
    blocks.lanes_last(sch, block, -2, tile.positions if tile.lanes == "positions" else 1)
    (n, g, *positions, column), (*taps, summed), lane = _loops(sch, block, rank)
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.columns])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    summing = [*taps, summed]
    if tile.lanes != "summed":
        block_of, run = sch.split(summed, [None, plan.summed])
        summing = [block_of, *taps, run]
    rows = [n, *positions[:-1], row0]
    inner = blocks.inner_extents([blocks.extent(sch, loop) for loop in rows], plan.range_tiles)
    split = [sch.split(loop, [None, size]) for loop, size in zip(rows, inner)]
    ranges, rows = ([pieces[i] for pieces in split] for i in (0, 1))
    group_range, g0 = sch.split(g0, [plan.group_ranges, None])
    column_range, column0 = sch.split(column0, [largest_divisor(blocks.extent(sch, column0), plan.column_ranges), None])
    tasks = [*ranges, group_range, column_range]
    order = {"positions": [g1, column1, row1], "summed": [g1, row1, column1, *lane]}
    register_tile = order.get(tile.lanes, [row1, column1, g1])
    sch.reorder(*tasks, g0, column0, *rows, *summing, *register_tile)
    blocks.vectorize_tile(sch, register_tile, lanes)
    if tile.lanes == "summed":
        _add_lanes(sch, total, rows[-1])
    sch.reverse_compute_at(result, rows[-1], preserve_unit_loops=True)
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    written_tile = [group, channel, row] if tile.lanes == "positions" else [row, channel, group]
    sch.reorder(image, *middle, *written_tile)
    blocks.vectorize_tile(sch, written_tile, lanes)
    return Nest(block, tasks, summing[0])


def _loops(sch: Schedule, block: SBlockRV, rank: int) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """(n, g, positions, column), (taps, summed channels), and the lane that was split from those, if any."""
    loops = sch.get_loops(block)
    spatial = rank + 3
    return loops[:spatial], loops[spatial : 2 * spatial - 2], loops[2 * spatial - 2 :]


def _add_lanes(sch: Schedule, total: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a tile's sums."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    *_, row, column, lane = sch.get_loops(total)
    for loop in (row, column, lane):
        sch.unroll(loop)
