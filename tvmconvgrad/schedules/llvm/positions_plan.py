"""The numbers of a schedule of sums over positions, from a model of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.llvm.costs import (
    ADDING_LANES,
    ALONE,
    ALONG_POSITIONS,
    APART,
    BEST_TILES,
    BORDERED,
    DISPERSING,
    IN_PLACE,
    PACKING,
    PANELS,
    PLACING,
    ROOM,
    SCATTERING,
    SPREADING,
    SUMMED_LANES,
    SUMMED_LANES_FAR,
    TRANSPOSING,
)
from tvmconvgrad.schedules.llvm.machine import CACHE_LINE, F32_BYTES, Machine
from tvmconvgrad.schedules.llvm.positions_sizes import Sizes, Tile
from tvmconvgrad.schedules.splitting import divisors, inner_extents, largest_divisor
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te.plain import data_is_plain, filter_is_plain

TASKS = 32
"""How many parallel tasks a sum should have at least: enough for many cores, few enough to stay large."""

SUMMED = 16
"""Channels that are summed in one run: a cache line of f32."""

SURPLUS = 1.6
"""How much more data than there is may be packed, before it is better packed once, by all threads, through memory."""

FEW_ROWS = 256
"""How many positions a panel must serve to be worth a copy without being transposed."""

NEAR = 0.3
"""What a byte of the last-level cache costs, as a part of what one of memory costs."""

TRAFFIC = 0.1
"""Cycles that a byte from memory takes."""

REPACKS = 4
"""How many column ranges may pack the same data, each for itself; for more it is packed once, to memory."""

LEAST_RUN = 2 * CACHE_LINE
"""Bytes of a channel's positions that a tile must read to read them where they lie."""

LEAST_SIDE = 4
"""Positions and lanes that a tile must have to be transposed."""


@dataclass(frozen=True)
class Plan:
    """All numbers of the schedule."""

    tile: Tile
    summed: int
    packs: str
    """Where the data is packed: in each "task", "before" all tasks, or not at all: ""."""
    packs_filter: bool
    fetch: int
    """How many positions ahead data that is read in place is fetched; 0: not at all."""
    range_tiles: int
    """How many row blocks a range of positions should have."""
    group_ranges: int
    column_ranges: int


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
class Planner:
    """Plans the sums of these sizes, with vectors over `lanes`, for a machine."""

    machine: Machine
    lanes: str
    sizes: Sizes

    def takes(self) -> bool:
        """Whether vectors may lie over these lanes."""
        problem, geometry = self.sizes.problem, self.sizes.problem.geometry
        apart = problem.gradient is Gradient.FORWARD and geometry.strides[-1] > 1 and geometry.k[-1] > 1
        if self.lanes == "summed":
            return self._may_sum_lanes()
        return not (self.lanes == "groups" and geometry.groups == 1) and not (self.lanes == "positions" and apart)

    def _may_sum_lanes(self) -> bool:
        """Whether the summed channels lie side by side in the data and in the filter, in whole vectors."""
        problem, sizes = self.sizes.problem, self.sizes
        last = "O" if problem.gradient is Gradient.DATA else "C"
        beside = problem.data_format == "NXC" and problem.filter_axes.endswith(last)
        tile = Tile(1, 1, 1, self.lanes)
        return beside and bool(sizes.sums) and filter_is_plain(problem, sizes.multiples(tile, self.machine.lanes))

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return min(self._cost(tile) for tile in self._tiles())

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers, as the model or whoever searches draws them."""
        sizes = self.sizes
        tiles = self._best_tiles()
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        in_place = self._reads_in_place(tile)
        ranges = self._ranges(tile, in_place)
        range_tiles = decisions.draw("range_tiles", [4 << power for power in range(8)], ranges.tiles)
        wanted = -(-TASKS // ranges.tasks)
        if self._has_small_images(tile):
            wanted = max(wanted, sizes.problem.geometry.groups * self._image(tile) // (self.machine.l1 // 2))
        group_ranges = decisions.draw_divisor("group_ranges", sizes.group_blocks(tile), wanted)
        wanted = -(-TASKS // (ranges.tasks * group_ranges))
        column_ranges = decisions.draw_divisor("column_ranges", sizes.column_blocks(tile), wanted)
        again = column_ranges <= REPACKS and self._may_pack_again(ranges.surplus)
        saves = 2 * ranges.surplus <= ranges.tasks and not self._has_room(tile)
        places = ["before"]
        if self._tasks_correspond(tile, range_tiles, column_ranges):
            places.append("task")
        if in_place:
            places.append("")
        default = "" if in_place else "task" if "task" in places and (again or saves) else "before"
        packs = places[decisions.draw("packs", range(len(places)), places.index(default))]
        fetch = 0
        if not packs and tile.lanes == "channels":
            fetch = decisions.draw("fetch", [0, tile.positions, 2 * tile.positions], tile.positions)
        packs_filter = not self._reads_filter_in_place(tile)
        return Plan(tile, self._run(not packs), packs, packs_filter, fetch, range_tiles, group_ranges, column_ranges)

    def bare_axes(self, tile: Tile) -> int:
        """Along how many axes a tile has one position, and no pads are packed before all tasks."""
        return self.sizes.problem.geometry.rank - (1 if tile.rows == 1 else 2)

    def _has_room(self, tile: Tile) -> bool:
        """Whether what is packed before all tasks takes no more memory than the tensors."""
        problem = self.sizes.problem
        data = self.sizes.packed(tile, self._run(in_place=False), self.bare_axes(tile))
        panels = 0 if self._reads_filter_in_place(tile) else prod(problem.filter_shape)
        return F32_BYTES * (data + panels) <= ROOM * problem.tensor_bytes

    # ---- ranges of positions ----

    def _tasks_correspond(self, tile: Tile, range_tiles: int, column_ranges: int) -> bool:
        """Whether all sums have as many tasks, which are then joined (schedules/joining.py)."""
        counts = set()
        for size, rows in zip(self.sizes.sums, self.sizes.row_blocks(tile)):
            ranges = prod(rows) // prod(inner_extents(rows, range_tiles))
            counts.add(ranges * largest_divisor(-(-size.columns // tile.columns), column_ranges))
        return len(counts) == 1

    def _ranges(self, tile: Tile, in_place: bool) -> Ranges:
        """The ranges with the least traffic from beyond the L2 cache; of those, the largest of which there are enough.

        A range reads every panel, and its data for every column block, from wherever they fit.
        """
        if not self.sizes.sums:
            return Ranges(1, 1, 1.0, 0.0)
        extents = max(self.sizes.row_blocks(tile), key=prod)
        if self._has_small_images(tile):
            return self._range(tile, in_place, extents, [1, *extents[1:]])
        most = min(prod(extents), self._most_tiles(tile))
        limits = {most // part for part in range(1, min(most, 8 * TASKS) + 1)}
        inners = {tuple(inner_extents(extents, limit)) for limit in limits}
        found = [self._range(tile, in_place, extents, inner) for inner in sorted(inners)]
        least = min(ranges.traffic for ranges in found)
        best = [ranges for ranges in found if ranges.traffic <= 1.1 * least]
        enough = [ranges for ranges in best if ranges.tasks * self.sizes.group_blocks(tile) >= TASKS]
        return max(enough, key=lambda r: r.tiles) if enough else min(best, key=lambda r: r.tiles)

    def _has_small_images(self, tile: Tile) -> bool:
        """Whether a task takes whole images of some groups, with vectors over positions: groups share nothing, and an
        image fits the cache."""
        by_rows = self.lanes == "positions" and self.sizes.problem.data_format == "NCX"
        return by_rows and self._is_depthwise and self._image(tile) <= self.machine.l2 // 2

    @property
    def _is_depthwise(self) -> bool:
        """Whether each sum is of products with a single channel, of many groups."""
        sizes = self.sizes
        return bool(sizes.sums) and sizes.summed == sizes.columns == 1 and sizes.problem.geometry.groups > 1

    def _image(self, tile: Tile) -> int:
        """Bytes of an image's data, of one group."""
        _, *blocks = max(self.sizes.row_blocks(tile), key=prod)
        positions = prod(size + halo for size, halo in zip(tile.covered(blocks), self.sizes.halo))
        return F32_BYTES * self.sizes.summed * positions

    @property
    def _shares_rows(self) -> bool:
        """Whether phases of a depthwise gradient write to the same rows, one after the other: what they write, which is
        several times what they read, should stay in the L2 cache until the last has done so."""
        return self.lanes == "groups" and len(self.sizes.sums) > 1 and self.sizes.summed == 1

    def _most_tiles(self, tile: Tile) -> int:
        """How many row blocks a range may have."""
        sizes = self.sizes
        row_block = (
            tile.rows * tile.positions * sizes.problem.geometry.groups * sum(size.columns for size in sizes.sums)
        )
        return max(self.machine.l2 // 2 // (F32_BYTES * row_block), 1) if self._shares_rows else 1 << 62

    def _may_pack_again(self, surplus: float) -> bool:
        """Whether ranges may pack so much more data than there is."""
        return surplus <= SURPLUS or self._shares_rows

    def _range(self, tile: Tile, in_place: bool, extents: Sequence[int], inner: Sequence[int]) -> Ranges:
        sizes, geometry = self.sizes, self.sizes.problem.geometry
        images, *blocks = inner
        read = images * prod(size + halo for size, halo in zip(tile.covered(blocks), sizes.halo))
        tasks = prod(extents) // prod(inner)
        images, *blocks = extents
        packed_once = images * prod(size + halo for size, halo in zip(tile.covered(blocks), sizes.halo))
        surplus = 1.0 if in_place else tasks * read / packed_once
        data, filter_ = (F32_BYTES * prod(shape) for shape in sizes.problem.input_shapes)
        together = 1 if self._has_small_images(tile) else geometry.groups
        fits = F32_BYTES * read * together * sizes.summed <= self.machine.l2
        times = 1 if fits else max(sizes.column_blocks(tile), 2)
        if not in_place and (not self._may_pack_again(surplus) or tasks * sizes.group_blocks(tile) < TASKS):
            surplus, times = 1.0, times + 2  # packed before all tasks: to memory, and from there
        again = 0.0 if self._filter_stays() else NEAR if filter_ <= self.machine.l3 else 1.0
        traffic = data * surplus * times + filter_ * (1 + again * (tasks - 1))
        return Ranges(prod(inner), tasks, tasks * read / packed_once, traffic)

    # ---- tiles ----

    def _best_tiles(self) -> list[Tile]:
        """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
        costs = [(self._cost(tile), self.sizes.products(tile), tile) for tile in self._tiles()]
        best = [(cost + self._traffic(tile), products, tile) for cost, products, tile in sorted(costs)[:BEST_TILES]]
        return [tile for *_, tile in sorted(best)]

    def _traffic(self, tile: Tile) -> float:
        """Cycles that the ranges' traffic takes: a tile whose blocks cannot be split evenly may have bad ones."""
        return TRAFFIC * self._ranges(tile, self._reads_in_place(tile)).traffic

    def _tiles(self) -> list[Tile]:
        lanes, registers = self.machine.lanes, self.machine.registers
        columns = {size.columns for size in self.sizes.sums} or {self.sizes.columns}
        few = sorted({d for count in columns for d in divisors(count) if d <= registers})
        shapes: list[tuple[int, ...]]
        if self.lanes == "groups":
            shapes = [(m, n, w) for m in range(1, registers) for n in few for w in self.machine.vectors]
        elif self.lanes == "summed":
            fitting = [n for n in few if all(count % n == 0 for count in columns)]
            shapes = [(m, n, 1) for m in range(1, registers) for n in fitting]
        elif self.lanes == "positions":
            vectors = [(w * m, m) for m in range(1, registers) for w in self.machine.vectors]
            shapes = [(w, n, 1, r) for w, m in vectors for n in few for r in self._rows(w) if m * n * r < registers]
        else:
            widths = [*self.machine.vectors, *(lanes * n for n in (2, 3, 4, 6))]
            shapes = [(m, n, 1) for m in range(1, registers) for n in widths]
        tiles = [Tile(m, n, groups, self.lanes, *more) for m, n, groups, *more in shapes]
        return [tile for tile in tiles if self._efficiency(tile) > 0]

    def _rows(self, positions: int) -> list[int]:
        """How many rows a tile of so many positions may have: more than one if they are whole, since memory is read and
        written row after row; and all sums have a multiple of them."""
        sums = self.sizes.sums
        whole = sums and all(positions >= size.positions[-1] for size in sums)
        if self.sizes.problem.data_format != "NCX" or self.sizes.problem.geometry.rank == 1 or not whole:
            return [1]
        return divisors(gcd(*(size.positions[-2] for size in sums)))

    def _efficiency(self, tile: Tile, in_place: bool = False) -> float:
        rows, columns, used = tile.vectors(self.machine.lanes)
        if tile.lanes == "groups":
            # Each sum has data of its own, which LLVM keeps for the next tap; and the sums are short.
            fits = rows * (columns + 1) < self.machine.registers
            return self.machine.tile_efficiency(rows, columns, used, PANELS, enough=6) if fits else 0.0
        if tile.lanes == "positions" and self._is_depthwise:
            # The same, and what taps of three rows read is another one for each.
            fits = 3 * rows * columns < self.machine.registers
            return self.machine.tile_efficiency(rows, columns, used, ALONE, enough=6) if fits else 0.0
        return self.machine.tile_efficiency(rows, columns, used, self._loading(in_place))

    def _loading(self, in_place: bool) -> tuple[float, float]:
        if self.lanes == "positions":
            return APART if in_place else ALONG_POSITIONS
        if self.lanes == "summed":
            return SUMMED_LANES if self._filter_stays() else SUMMED_LANES_FAR
        return IN_PLACE if in_place else PANELS

    def _filter_stays(self) -> bool:
        """Whether the filter stays in the L2 cache, beside data."""
        return F32_BYTES * prod(self.sizes.problem.input_shapes[1]) <= self.machine.l2 // 2

    # ---- costs ----

    def _cost(self, tile: Tile) -> float:
        """Cycles of one core, about: of the products, and of moving data, filter and results."""
        problem = self.sizes.problem
        in_place = self._reads_in_place(tile)
        data, weights = problem.input_shapes
        packing = 0.0 if in_place else self._packing(tile)
        panels = 0.0 if self._reads_filter_in_place(tile) else self._packing_filter(tile)
        moving = packing * prod(data) + panels * prod(weights) + self._placing(tile) * prod(problem.output_shape)
        return self._computing(tile, in_place) + moving

    def _computing(self, tile: Tile, in_place: bool) -> float:
        return self.sizes.products(tile) / (2 * self.machine.lanes * self._efficiency(tile, in_place))

    def _along(self, tile: Tile) -> bool:
        """Whether the tile's vectors lie along the memory of data and result."""
        return (self.sizes.problem.data_format == "NXC") != (tile.lanes == "positions")

    def _packing(self, tile: Tile) -> float:
        if not self._along(tile) or (tile.lanes == "groups" and self.sizes.summed > 1):
            return TRANSPOSING
        if tile.lanes != "positions" or self._is_depthwise:
            return PACKING
        return PACKING if data_is_plain(self.sizes.problem, self.sizes.multiples(tile, 1)) else BORDERED

    def _packing_filter(self, tile: Tile) -> float:
        along = tile.lanes == "channels" and self.sizes.problem.filter_axes.endswith(self.sizes.column_axis)
        return PACKING if along else TRANSPOSING

    def _placing(self, tile: Tile) -> float:
        if tile.lanes == "summed":
            return PLACING + ADDING_LANES
        if self.transposes_result(tile):
            return self._spreading if self._is_apart else TRANSPOSING
        if not self._along(tile) and tile.lanes != "positions":
            return DISPERSING
        return PLACING if self._along(tile) and self._writes_whole_lines(tile) else SCATTERING

    @property
    def _is_apart(self) -> bool:
        """Whether the results of a phase lie apart along the last axis."""
        problem = self.sizes.problem
        return problem.gradient is Gradient.DATA and problem.geometry.strides[-1] > 1

    @property
    def _spreading(self) -> float:
        return SPREADING if self.machine.masked_stores else DISPERSING

    def transposes_result(self, tile: Tile) -> bool:
        """Whether tiles are transposed in registers, to be written along positions: whole ones of neighbours, since
        where parts of a tile are left out it is written element by element."""
        sizes, geometry = self.sizes, self.sizes.problem.geometry
        if sizes.problem.data_format != "NCX" or tile.lanes not in ("channels", "groups"):
            return False
        side = min(tile.positions, tile.groups if tile.lanes == "groups" else tile.columns)
        whole = geometry.groups % tile.groups == 0 and all(
            size.positions[-1] % tile.positions == 0 and size.columns % tile.columns == 0 for size in sizes.sums
        )
        return side >= LEAST_SIDE and whole

    def writes_rows(self, tile: Tile) -> bool:
        """Whether the vectors of a tile are neighbours along a row of the result; some may go beyond its end."""
        return tile.lanes == "positions" and self.sizes.problem.data_format == "NCX"

    def _writes_whole_lines(self, tile: Tile) -> bool:
        """Whether the vectors of a tile are neighbours in the result's memory, and none goes beyond it."""
        sizes, geometry = self.sizes, self.sizes.problem.geometry
        if tile.lanes == "groups":
            return sizes.columns == 1 and geometry.groups % tile.groups == 0
        if tile.lanes == "positions":
            return self.writes_rows(tile) and not self._is_apart
        if geometry.groups > 1 and sizes.columns * F32_BYTES % CACHE_LINE:
            return False  # groups share a line, which comes and goes for each of them
        vector = largest_divisor(tile.columns, self.machine.lanes)
        return all(
            size.columns % tile.columns == 0 and (size.columns == sizes.columns or sizes.columns % vector == 0)
            for size in sizes.sums
        )

    # ---- what is read where it lies ----

    def _run(self, in_place: bool) -> int:
        """How many channels are summed in one run."""
        if self.lanes == "positions":
            return 1
        if self.lanes == "summed":
            return self.machine.lanes
        return largest_divisor(self.sizes.summed, SUMMED) if in_place else min(self.sizes.summed, SUMMED)

    def _reads_filter_in_place(self, tile: Tile) -> bool:
        """Whether the filter is read where it lies: where its lanes are side by side, and few rows share a panel."""
        if tile.lanes == "summed":
            return True
        problem, sizes = self.sizes.problem, self.sizes
        if tile.lanes != "channels" or not problem.filter_axes.endswith(sizes.column_axis):
            return False
        rows = problem.geometry.batch * max((prod(size.positions) for size in sizes.sums), default=0)
        return rows < FEW_ROWS and filter_is_plain(problem, sizes.multiples(tile, self._run(in_place=True)))

    def _reads_in_place(self, tile: Tile) -> bool:
        """Whether the data is read where it lies: it is f32, needs no zeros, the tile's order is the memory's, and its
        rows, where they are far apart, don't displace each other from the cache."""
        problem, (data, _) = self.sizes.problem, self.sizes.problem.input_shapes
        if not self._along(tile) or tile.lanes == "groups":
            return False
        if tile.lanes == "channels" and tile.positions > self.machine.rows_apart(F32_BYTES * data[-1]):
            return False
        if tile.lanes == "positions":
            near = self.sizes.summed <= self.machine.rows_apart(F32_BYTES * prod(data[2:]))
            if not near or F32_BYTES * tile.positions < LEAST_RUN:
                return False
        return data_is_plain(problem, self.sizes.multiples(tile, self._run(in_place=True)))
