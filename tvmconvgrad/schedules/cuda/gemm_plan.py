"""The numbers of schedules/cuda/gemm.py, by a small model of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tvmconvgrad.schedules.cuda.machine import Machine
from tvmconvgrad.schedules.cuda.operands import vector_lanes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import parts
from tvmconvgrad.te.tensors import ceil_to, group_sizes

LAUNCH = 3.0
"""Microseconds that a kernel takes to begin and to end."""
STARTING = 2.0
"""Microseconds of a block in which it does not multiply: until its first tiles have come, and to write its result."""
ENOUGH_WARPS = 8
"""Warps that an SM needs, so that some multiply while others wait."""
SHARED_BYTES = 128
"""Bytes that an SM reads from shared memory in a cycle."""
REGISTERS = 1 << 16
"""Of an SM."""
MOST_SPLITS = 128
WARP = 32


@dataclass(frozen=True)
class Tile:
    """What a block computes, and by how many warps (or, of f32, threads) along rows and along columns."""

    rows: int
    columns: int
    workers: tuple[int, int]


TENSOR_TILES = (
    Tile(256, 128, (4, 2)),
    Tile(128, 256, (2, 4)),
    Tile(128, 128, (2, 2)),
    Tile(256, 64, (4, 1)),
    Tile(64, 256, (1, 4)),
    Tile(128, 64, (2, 2)),
    Tile(64, 128, (2, 2)),
    Tile(64, 64, (2, 2)),
    Tile(128, 32, (4, 1)),
    Tile(32, 128, (1, 4)),
    Tile(64, 32, (2, 1)),
    Tile(32, 32, (2, 1)),
    Tile(128, 16, (4, 1)),
)
"""Warps have up to 64 x 64 sums: then they read little from shared memory for each product."""

FMA_TILES = (
    Tile(128, 128, (16, 16)),
    Tile(128, 64, (16, 8)),
    Tile(64, 128, (8, 16)),
    Tile(64, 64, (8, 8)),
    Tile(64, 64, (16, 16)),
    Tile(128, 32, (16, 8)),
    Tile(32, 128, (8, 16)),
    Tile(32, 32, (8, 8)),
    Tile(128, 16, (32, 4)),
)
"""Threads have up to 8 x 8 sums."""


@dataclass(frozen=True)
class Plan:
    """All numbers of a program."""

    tile: Tile
    depth: int
    """Summed elements of a stage."""
    stages: int
    splits: int

    def __str__(self) -> str:
        return f"{self.tile.rows}x{self.tile.columns}x{self.depth}"

    def numbers(self) -> dict[str, int | list[int]]:
        """By name, for people."""
        return {
            "tile": [self.tile.rows, self.tile.columns, self.depth],
            "workers": list(self.tile.workers),
            "stages": self.stages,
            "splits": self.splits,
        }


@dataclass(frozen=True)
class Size:
    """Rows, columns and summed elements of one product, before any rounding."""

    rows: int
    columns: int
    summed: int


@dataclass(frozen=True)
class Planner:
    """Chooses the numbers of a problem's program."""

    machine: Machine
    problem: Problem

    @property
    def is_tensor(self) -> bool:
        """Whether tensor cores compute."""
        return self.problem.dtype != "f32"

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles to choose from."""
        return TENSOR_TILES if self.is_tensor else FMA_TILES

    def multiples(self, tile: Tile) -> Multiples:
        """Channels in whole vectors. Residues of a data gradient either fill tiles of columns, or share positions."""
        lanes = vector_lanes(self.problem)
        if self.problem.gradient is Gradient.DATA:
            return Multiples(c=tile.columns, o=lanes)
        return Multiples(c=lanes, o=lanes)

    def least_cost(self) -> float | None:
        """Microseconds, about; None where the sums are no matrix products, or the GPU is too old."""
        if not self.machine.has_copies or not self.is_product():
            return None
        return min(self.cost(tile, splits) for tile in self.tiles for splits in self.splits(tile))

    def is_product(self) -> bool:
        """Whether all sums are matrix products, and none is empty."""
        geometry = self.problem.geometry
        sizes = (geometry.batch, geometry.c, geometry.o, *geometry.y, *geometry.x, *geometry.k)
        if 0 in sizes:
            return False
        if self.problem.gradient is not Gradient.DATA:
            return True
        found = parts(self.problem, self.multiples(self.tiles[0]))
        return bool(found) and not any(by_x for part in found for by_x in part.over_x)

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers of the program, drawn."""
        costs = [min(self.cost(tile, splits) for splits in self.splits(tile)) for tile in self.tiles]
        chosen = decisions.draw("tile", range(len(self.tiles)), costs.index(min(costs)))
        tile = self.tiles[chosen]
        depth = decisions.draw("depth", (32, 64) if self.is_tensor else (8, 16), 32 if self.is_tensor else 16)
        share = self.machine.shared // min(self._together(tile), 2)
        fitting = [stages for stages in (2, 3, 4) if self.shared_bytes(tile, depth, stages) <= share] or [2]
        stages = decisions.draw("stages", fitting, max(fitting))
        options = self.splits(tile)
        splits = decisions.draw("splits", options, min(options, key=lambda count: self.cost(tile, count)))
        return Plan(tile, depth, stages, splits)

    def shared_bytes(self, tile: Tile, depth: int, stages: int) -> int:
        """Bytes of a block's stages, about."""
        item = ITEM_BYTES[self.problem.dtype]
        return stages * (tile.rows + tile.columns) * (depth * item + 16)

    def splits(self, tile: Tile) -> list[int]:
        """Into how many parts the sum may be split: powers of two that leave a block some stages to add up."""
        most = min(MOST_SPLITS, max(size.summed for size in self.sizes()) // 256)
        return [1 << i for i in range(max(most, 1).bit_length())]

    def sizes(self) -> list[Size]:
        """The products of a group, one for each sum."""
        return list(_sizes(self.problem))

    def cost(self, tile: Tile, splits: int) -> float:
        """Microseconds, about: the blocks of the SM that has most, packing, and adding the splits up."""
        groups, machine = self.problem.geometry.groups, self.machine
        time = self._packing()
        for size in self.sizes():
            tiles = groups * -(-size.rows // tile.rows) * -(-size.columns // tile.columns)
            blocks = -(-tiles * splits // machine.processors)
            at_a_time = min(blocks, self._together(tile))
            enough = min(1.0, at_a_time * self._warps(tile) / ENOUGH_WARPS)
            multiplying = self._cycles(tile, -(-size.summed // splits)) / machine.cycles / enough
            waiting = STARTING * -(-blocks // at_a_time)
            time += LAUNCH + max(blocks * multiplying + waiting, self._moving())
            if splits > 1:
                partial = 4.0 * splits * groups * size.rows * size.columns
                time += LAUNCH + 2 * partial / machine.bytes + splits * 0.03
        return time

    def _warps(self, tile: Tile) -> int:
        return prod(tile.workers) if self.is_tensor else prod(tile.workers) // WARP

    def _together(self, tile: Tile) -> int:
        """Blocks that an SM has at a time."""
        depth = 32 if self.is_tensor else 16
        stages = self.shared_bytes(tile, depth, 3)
        sums = 4 * tile.rows * (tile.columns + 8)
        registers = self._registers(tile) * WARP * self._warps(tile)
        return max(1, min(self.machine.shared // max(stages, sums), REGISTERS // registers))

    def _registers(self, tile: Tile) -> int:
        """Registers of a thread, about: its sums, what it multiplies next, and addresses."""
        rows, columns = tile.rows // tile.workers[0], tile.columns // tile.workers[1]
        if self.is_tensor:
            return (rows * columns + 8 * (rows + columns)) // WARP + 48
        return rows * columns + 8 * (rows + columns) + 20

    def _cycles(self, tile: Tile, summed: int) -> float:
        """Cycles of an SM for a block's products: of the units, of shared memory, or of the L2 cache."""
        products = float(tile.rows * tile.columns)
        loaded = (tile.rows + tile.columns) * ITEM_BYTES[self.problem.dtype]
        rows, columns = tile.rows // tile.workers[0], tile.columns // tile.workers[1]
        if self.is_tensor:
            multiplying = products / self.machine.tensor_products
            reading = prod(tile.workers) * (rows + columns) * 2 / SHARED_BYTES
        else:
            multiplying = products / self.machine.f32_products * (1 + 0.6 / min(rows, columns))
            reading = 0.0
        depth = 32 if self.is_tensor else 16
        return ceil_to(summed, depth) * 1.15 * max(multiplying, reading, loaded / self.machine.l2_bytes)

    def _moving(self) -> float:
        """Microseconds that the GPU's memory takes at least: operands and the result, each once."""
        item = ITEM_BYTES[self.problem.dtype]
        shapes = (*self.problem.input_shapes, self.problem.output_shape)
        return item * sum(prod(shape) for shape in shapes) / len(self.sizes()) / self.machine.bytes

    def _packing(self) -> float:
        """Microseconds of packing what is not read where it lies, about."""
        geometry, lanes = self.problem.geometry, vector_lanes(self.problem)
        item = ITEM_BYTES[self.problem.dtype]
        c_group, o_group = group_sizes(geometry)
        y = geometry.batch * prod(geometry.y) * geometry.groups * ceil_to(c_group, lanes)
        x = geometry.batch * prod(geometry.x) * geometry.groups * ceil_to(o_group, lanes)
        reads = {Gradient.FILTER: (y, x), Gradient.DATA: (x,), Gradient.FORWARD: (y,)}[self.problem.gradient]
        plain = self.problem.data_format == "NXC" and c_group % lanes == 0 and o_group % lanes == 0
        return 0.0 if plain else sum(LAUNCH + 2.5 * item * size / self.machine.bytes for size in reads)


@lru_cache(maxsize=256)
def _sizes(problem: Problem) -> tuple[Size, ...]:
    return tuple(_each_size(problem))


def _each_size(problem: Problem) -> Iterator[Size]:
    geometry, lanes = problem.geometry, vector_lanes(problem)
    c, o = (ceil_to(size, lanes) for size in group_sizes(geometry))
    positions = geometry.batch * prod(geometry.x)
    if problem.gradient is Gradient.FILTER:
        yield Size(prod(geometry.k) * c, o, positions)
    elif problem.gradient is Gradient.FORWARD:
        yield Size(positions, o, prod(geometry.k) * c)
    else:
        for part in parts(problem, Multiples()):
            yield Size(geometry.batch * prod(part.positions), part.channels, part.taps * o)
