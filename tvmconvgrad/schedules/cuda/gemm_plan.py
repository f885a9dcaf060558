"""The numbers of schedules/cuda/gemm.py, by a small model of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt

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
STARTING = 1.5
"""Microseconds from a block's beginning until its first products."""
MOST_SPLITS = 128
EFFICIENCY = 0.75
"""The share of peak that large tiles reach."""


@dataclass(frozen=True)
class Tile:
    """What a block computes, and by how many warps (or, of f32, threads) along rows and along columns."""

    rows: int
    columns: int
    workers: tuple[int, int]

    @property
    def efficiency(self) -> float:
        """How well a tile of this size uses the units: it reads rows + columns numbers for rows * columns products."""
        return EFFICIENCY * min(1.0, sqrt(self.rows * self.columns / (self.rows + self.columns) / 64))


TENSOR_TILES = (
    Tile(128, 128, (2, 4)),
    Tile(128, 64, (4, 2)),
    Tile(64, 128, (2, 4)),
    Tile(64, 64, (2, 2)),
    Tile(128, 32, (4, 1)),
    Tile(32, 128, (1, 4)),
    Tile(64, 32, (2, 2)),
    Tile(32, 32, (2, 1)),
    Tile(64, 16, (4, 1)),
)
FMA_TILES = (
    Tile(128, 128, (16, 16)),
    Tile(128, 64, (16, 8)),
    Tile(64, 128, (8, 16)),
    Tile(64, 64, (16, 16)),
    Tile(128, 32, (32, 8)),
    Tile(32, 128, (8, 32)),
    Tile(32, 32, (8, 8)),
    Tile(64, 16, (16, 4)),
)


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
        fitting = [stages for stages in (2, 3, 4) if self.shared_bytes(tile, depth, stages) <= self.machine.shared // 2]
        stages = decisions.draw("stages", fitting or [2], max(fitting or [2]))
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
        """Microseconds, about: waves of blocks, packing, and adding the splits up."""
        groups = self.problem.geometry.groups
        peak = self.machine.tensor_flops if self.is_tensor else self.machine.f32_flops
        peak *= tile.efficiency / self.machine.processors
        time = 0.0
        for size in self.sizes():
            tiles = groups * -(-size.rows // tile.rows) * -(-size.columns // tile.columns)
            waves = -(-tiles * splits // self.machine.processors)
            flops = 2.0 * tile.rows * tile.columns * ceil_to(size.summed, 32) / splits
            time += LAUNCH + waves * (STARTING / 2 + flops / peak)
            if splits > 1:
                time += LAUNCH + 2 * 4 * splits * groups * size.rows * size.columns / self.machine.bytes + splits * 0.05
        return time + self._packing()

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
