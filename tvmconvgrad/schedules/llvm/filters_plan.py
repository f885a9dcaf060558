"""The numbers of a schedule of filter gradients, from a model of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeVar

from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.llvm.costs import BEST_TILES, GROUPING, PACKING, ROOM, TRANSPOSING
from tvmconvgrad.schedules.llvm.machine import F32_BYTES, Machine
from tvmconvgrad.schedules.splitting import divisors, inner_extents, largest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import ceil_to, group_sizes

T = TypeVar("T")

TASKS = 16
"""How many parallel tasks a kernel should have at least: enough for many cores, few enough to stay large."""

FINISHING = 3.0
"""Cycles an element to bring a filter from the tiles' order into another."""

VECTORS_OF_TAPS = (0.5, 0.5)
"""Parts of an FMA that operands cost where vectors are over c: those of Y are other ones for each tap."""

FEW_CHANNELS = 4
"""Where there are fewer, taps share a tile, too. Elsewhere that gains nothing, and LLVM mixes the positions up."""

AHEAD = 64
"""How many positions ahead vectors over groups have their data fetched."""

LEAST_CHUNK = 32
"""Positions of a chunk, at least: each chunk adds its tiles to memory."""


def _by_task(ranges: int, surplus: float = 1.0) -> float:
    """Cycles an element that each of so many ranges packs for itself, into the cache; chunk by chunk, which takes
    `surplus` times as many in all."""
    return ranges * (0.8 + 0.4 * (surplus - 1))


def _before(ranges: int) -> float:
    """Cycles an element that is packed before all tasks, to memory, and read from there by so many ranges."""
    return 1.65 + 0.25 * ranges


@dataclass(frozen=True, order=True)
class Tile:
    """The register tile: `taps` x `c` x `o` channels x `groups`, with vectors over `lanes`."""

    taps: tuple[int, ...]
    """Taps along each axis."""
    c: int
    o: int
    groups: int
    lanes: str

    @property
    def vector(self) -> tuple[str, int]:
        """The axis that vectors lie along, "G", "C" or "O", and how many of its elements the tile has."""
        return {"groups": ("G", self.groups), "c": ("C", self.c), "o": ("O", self.o)}[self.lanes]

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
    packs: tuple[str, str]
    """Where Y, and X, are packed: "task" by task, or "before" all tasks, where too many tasks would pack the same."""
    chunk: tuple[int, ...]
    fetch: int
    """How many positions ahead what is read where it lies is fetched; 0: not at all."""
    splits: int
    g_ranges: int
    o_ranges: int
    c_ranges: int


@dataclass(frozen=True)
class Planner:
    """Plans a filter gradient, with vectors over `lanes`, for a machine."""

    machine: Machine
    lanes: str
    problem: Problem

    def least_cost(self) -> float:
        """Cycles of one core, about, with the best tile."""
        return min(self._cost(tile) for tile in self._tiles())

    def writes_result(self, tile: Tile) -> bool:
        """Whether tiles are added up in the result itself: f32, nothing rounded up, vectors along its memory."""
        c_group, o_group = group_sizes(self.problem.geometry)
        whole = c_group % tile.c == 0 and o_group % tile.o == 0
        return self.problem.dtype == "f32" and self.problem.filter_axes.endswith(tile.lanes.upper()) and whole

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers, from the machine and the sizes of the problem."""
        tiles = self._best_tiles()
        tile = tiles[decisions.draw("tile", range(len(tiles)), 0)]
        geometry = self.problem.geometry
        c_group, o_group = (ceil_to(size, m) for size, m in zip(group_sizes(geometry), (tile.c, tile.o)))
        c_block, o_block = blocks = self._draw_blocks(decisions, tile)
        extents = (geometry.batch, *geometry.x)
        limits = [LEAST_CHUNK << power for power in range(6)]
        chunk = inner_extents(extents, decisions.draw("chunk", limits, self._chunk(tile)))
        chunks = prod(extents) // prod(chunk)
        parts = (ceil_to(geometry.groups, tile.groups) // tile.groups, o_group // tile.o, c_group // tile.c)
        surplus = self._surplus(chunk)
        splits = decisions.draw_divisor("splits", chunks, self._splits(tile, chunks, parts, surplus))
        wanted = self._ranges(tile, splits, parts, surplus)
        names = ("g_ranges", "o_ranges", "c_ranges")
        ranges = [decisions.draw_divisor(*draw) for draw in zip(names, parts, wanted)]
        packs = self._draw_packs(decisions, tile, blocks, splits, ranges, surplus)
        if packs[1] == "before" and self._lies_packed(o_block):
            o_block = 0
        fetch = self._fetch(tile, prod(chunk), packs[1] == "task", c_block, o_block)
        if fetch:
            fetch = decisions.draw("fetch", [0, fetch // 2, fetch, 2 * fetch], fetch)
        return Plan(tile, c_block, o_block, packs, tuple(chunk), fetch, splits, *ranges)

    def _fetch(self, tile: Tile, chunk: int, by_task: bool, c_block: int, o_block: int) -> int:
        """What a product reads in place is fetched for the next chunk while all channels sweep this one; what vectors
        over groups read once, a little ahead. X that lies packed is near by then."""
        if tile.lanes == "groups" and not (c_block and o_block):
            return AHEAD
        return chunk if not c_block or (by_task and not o_block) else 0

    def _draw_blocks(self, decisions: Decisions, tile: Tile) -> tuple[int, int]:
        default = self._blocks(tile)
        if not self._is_whole_product(tile):
            return default
        c_block, o_block = self._packed_blocks(tile)
        found = list(product((0, c_block), (0, o_block)))
        return found[decisions.draw("blocks", range(len(found)), found.index(default))]

    def _draw_packs(
        self,
        decisions: Decisions,
        tile: Tile,
        blocks: tuple[int, int],
        splits: int,
        ranges: Sequence[int],
        surplus: float,
    ) -> tuple[str, str]:
        wanted = self._packs(ranges, surplus)
        if not self._has_room(tile, blocks, splits, wanted):
            wanted = wanted[0], "task"
        if not any(blocks):
            return wanted
        where = ("task", "before")
        places = list(product(where, where))
        y_packs, x_packs = places[decisions.draw("packs", range(len(places)), places.index(wanted))]
        return y_packs, x_packs

    def _has_room(self, tile: Tile, blocks: tuple[int, int], splits: int, packs: tuple[str, str]) -> bool:
        """Whether what is packed before all tasks, and what is added up, take no more memory than the tensors."""
        problem = self.problem
        operands = zip((problem.y_shape, problem.x_shape), blocks, packs)
        packed = sum(prod(shape) for shape, block, where in operands if block and where == "before")
        sums = 0 if self.writes_result(tile) and splits == 1 else splits * prod(problem.filter_shape)
        return F32_BYTES * (packed + sums) <= ROOM * problem.tensor_bytes

    def _splits(self, tile: Tile, chunks: int, parts: Sequence[int], surplus: float) -> int:
        """How many splits: they cost memory and its traffic, at most half of that of the operands.

        Where data is packed before all tasks, ranges of channels cost nothing, and are better if there are enough.
        """
        elements = prod(parts) * tile.groups * tile.o * tile.c * prod(self.problem.geometry.k)
        limit = max(self._operands // (2 * elements), 1)
        fitting = [count for count in divisors(chunks) if count <= limit]
        splits = min(fitting, key=lambda count: max(count / TASKS, TASKS / count))
        before = any(self._blocks(tile)) and "before" in self._packs(
            self._ranges(tile, splits, parts, surplus), surplus
        )
        return 1 if before and prod(parts) >= TASKS else splits

    def _ranges(self, tile: Tile, splits: int, parts: Sequence[int], surplus: float) -> list[int]:
        """Ranges of groups, of channels o and of channels c, that make enough tasks together with the splits.

        Each range of o reads all of Y, and each of c all of X, so the larger one is better read less often. A range
        that ends inside of a block packs all of it.
        """
        groups, o_parts, c_parts = parts
        c_block, o_block = self._blocks(tile)
        g_ranges = largest_divisor(groups, TASKS // splits)
        wanted = max(-(-(TASKS // splits) // g_ranges), 1)
        pairs = [(o, c) for o in divisors(o_parts) for c in divisors(c_parts) if o <= wanted and c <= -(-wanted // o)]
        most = max(o * c for o, c in pairs)
        enough = [(o, c) for o, c in pairs if 4 * o * c >= 3 * most]

        def cost(pair: tuple[int, int]) -> tuple[bool, float]:
            o_range, c_range = o_parts // pair[0] * tile.o, c_parts // pair[1] * tile.c
            inside = bool((c_block and c_range % c_block) or (o_block and o_range % o_block))
            return inside, self._reading(pair, surplus)

        return [g_ranges, *min(enough, key=cost)]

    def _reading(self, ranges: tuple[int, int], surplus: float) -> float:
        """Cycles to bring the operands to so many ranges of o and of c."""
        o_ranges, c_ranges = ranges
        y = min(_by_task(o_ranges, surplus), _before(o_ranges))
        x = min(_by_task(c_ranges), _before(c_ranges))
        return y * prod(self.problem.y_shape) + x * prod(self.problem.x_shape)

    def _surplus(self, chunk: Sequence[int]) -> float:
        """How much more of Y than there is all chunks pack, since neighbours read the same."""
        geometry = self.problem.geometry
        axes = zip(chunk[1:], geometry.x, geometry.y, geometry.strides, geometry.k, geometry.dilations)
        read = prod(x // part * ((part - 1) * s + (k - 1) * d + 1) for part, x, _, s, k, d in axes)
        return float(read / prod(geometry.y))

    @property
    def _operands(self) -> int:
        """Elements of both operands."""
        return prod(self.problem.y_shape) + prod(self.problem.x_shape)

    def _packs(self, ranges: Sequence[int], surplus: float) -> tuple[str, str]:
        """What so many ranges would pack too often is packed before."""
        _, o_ranges, c_ranges = ranges
        y_packs = "task" if _by_task(o_ranges, surplus) <= _before(o_ranges) else "before"
        return y_packs, "task" if _by_task(c_ranges) <= _before(c_ranges) else "before"

    def _chunk(self, tile: Tile) -> int:
        """How many positions are a chunk: what is packed stays in the L2 cache, what is read in place in L1."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        if tile.groups > 1:
            swept = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
            if c_group * o_group > 1:
                return self.machine.l2 // 2 // (F32_BYTES * tile.groups * (c_group * swept + o_group))
            return max(self._l1_positions(tile.groups * swept), LEAST_CHUNK)
        in_place, packed = 0, 0
        for channels, block in zip((c_group, o_group), self._blocks(tile)):
            in_place, packed = (in_place, packed + channels) if block else (in_place + channels, packed)
        limit = self.machine.l2 // 2 // (F32_BYTES * packed) if packed else 1024
        limit = min(max(limit, 128), 1024)
        return min(limit, self._l1_positions(in_place)) if in_place else limit

    def _l1_positions(self, channels: int) -> int:
        """How many positions fit the L1 cache with a little left, each of so many channels."""
        return int(0.85 * self.machine.l1) // (F32_BYTES * channels)

    def _packed_blocks(self, tile: Tile) -> tuple[int, int]:
        """How many channels of Y, and of X, are packed together where a tile reads c and o of them.

        At least a whole vector where that suits the tile, since they are copied that way.
        """
        c_group, o_group = group_sizes(self.problem.geometry)
        lanes = self.machine.lanes

        def packed(size: int, channels: int) -> int:
            if tile.groups > 1:  # of 16 bits, all channels of a group: they are transposed
                whole = self.problem.dtype != "f32" and channels <= lanes and channels % size == 0
                return channels if whole else size
            return lanes if lanes % size == 0 and channels % lanes == 0 else size

        return packed(tile.c, c_group), packed(tile.o, o_group)

    def _blocks(self, tile: Tile) -> tuple[int, int]:
        """How many channels are packed together; 0: none.

        In a matrix product, data whose chunk fits L1 as it lies is not packed.
        """
        c_block, o_block = self._packed_blocks(tile)
        c_group, o_group = group_sizes(self.problem.geometry)
        if tile.lanes == "groups" and self.problem.data_format == "NXC" and self.problem.dtype == "f32":
            # Lanes side by side in memory are read where they lie; that a position is a pad holds for all of them. Y is
            # worth a copy without the pads where it is read for several blocks of taps.
            whole = self.problem.geometry.groups % tile.groups == 0
            once = whole and tile.taps == self.problem.geometry.k
            return 0 if once and c_group == 1 else c_block, 0 if whole and o_group == 1 else o_block
        if not self._is_whole_product(tile):
            return c_block, o_block
        if self._l1_positions(c_group + o_group) >= LEAST_CHUNK:
            return 0, 0
        c_fits, o_fits = (self._l1_positions(size) >= 2 * LEAST_CHUNK for size in (c_group, o_group))
        return (0, o_block) if c_fits else (c_block, 0) if o_fits else (c_block, o_block)

    def _lies_packed(self, o_block: int) -> bool:
        """Whether X lies in memory as blocks of so many channels would."""
        problem = self.problem
        return problem.dtype == "f32" and problem.data_format == "NXC" and problem.geometry.o == o_block

    def _best_tiles(self) -> list[Tile]:
        """The cheapest tiles, cheapest first; of equally cheap ones, that with the least surplus in work and memory."""
        costs = [(self._cost(tile), self._products(tile), tile) for tile in self._tiles()]
        return [tile for *_, tile in sorted(costs)[:BEST_TILES]]

    def _cost(self, tile: Tile) -> float:
        """Cycles of one core, about: of the products, and of packing."""
        computing = self._products(tile) / (2 * self.machine.lanes * self._efficiency(tile))
        shapes, sizes = (self.problem.y_shape, self.problem.x_shape), group_sizes(self.problem.geometry)
        for shape, channels, block in zip(shapes, sizes, self._blocks(tile)):
            computing += self._packing(tile, channels, block) * prod(shape)
        return computing + self._finishing(tile) * prod(self.problem.filter_shape)

    def _finishing(self, tile: Tile) -> float:
        """Cycles an element to bring the filter from the tiles' order into the user's."""
        if self.writes_result(tile):
            return 0.0
        return PACKING if self.problem.filter_axes.endswith(tile.lanes.upper()) else FINISHING

    def _packing(self, tile: Tile, channels: int, block: int) -> float:
        """Cycles an element to pack blocks of so many channels."""
        if block == 0:
            return 0.0
        if self.problem.data_format == "NCX":
            # Of a row that a single tap strides along all is loaded for each square of channels; the last ones overlap.
            strided = self.problem.geometry.strides[-1] > 1 == self.problem.geometry.k[-1]
            strided &= tile.groups == 1 and block >= FEW_CHANNELS
            side = min(1 << block.bit_length() - 1, self.machine.lanes)
            return TRANSPOSING * (ceil_to(block, side) / block * max(1.0, 8 / side) if strided else 1.0)
        if tile.groups > 1 and channels > 1:
            return GROUPING
        run = largest_divisor(tile.groups * block, self.machine.lanes)
        return max(PACKING, 8 / run)

    def _tiles(self) -> list[Tile]:
        c_group, o_group = group_sizes(self.problem.geometry)
        lanes, registers = self.machine.lanes, self.machine.registers
        *outer, last = self.problem.geometry.k
        ones = (1,) * len(outer)
        taps = {(*ones, 1)}
        if self.lanes == "groups" or min(c_group, o_group) < FEW_CHANNELS:
            taps |= {(*ones, last), (*outer, last)}
        sizes: list[tuple[int, int, int]]
        if self.lanes == "groups":
            few_c, few_o = ([d for d in divisors(size) if d <= registers] for size in (c_group, o_group))
            sizes = [(c, o, w) for c in few_c for o in few_o for w in self.machine.vectors]
        else:
            widths = [*self.machine.vectors, *(lanes * n for n in (2, 3, 4, 6))]
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

    def _is_whole_product(self, tile: Tile) -> bool:
        """Whether the sum is a plain matrix product of f32 rows of channels, in whole tiles."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        if c_group % tile.c or o_group % tile.o:
            return False
        numbers = (*geometry.k, *geometry.strides, geometry.groups)
        pads = (*geometry.pads_begin, *geometry.pads_end)
        plain = self.problem.data_format == "NXC" and self.problem.dtype == "f32" and geometry.x == geometry.y
        return plain and max(numbers) == 1 and not any(pads)

    def _products(self, tile: Tile) -> int:
        """Multiply-adds, with all that is rounded up."""
        geometry = self.problem.geometry
        c_group, o_group = group_sizes(geometry)
        channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o) * ceil_to(geometry.groups, tile.groups)
        taps = prod(ceil_to(k, t) for k, t in zip(geometry.k, tile.taps))
        return channels * taps * geometry.batch * prod(geometry.x)
