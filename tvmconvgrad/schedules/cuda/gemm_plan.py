"""The numbers of schedules/cuda/gemm.py, by a small model of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.schedules.cuda.gemm_sizes import Size, sizes
from tvmconvgrad.schedules.cuda.gemm_tiles import ACCUMULATOR_BYTES, ENOUGH_WARPS, Tile, Units
from tvmconvgrad.schedules.cuda.machine import LAUNCH, Machine
from tvmconvgrad.schedules.cuda.operands import vector_lanes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import parts
from tvmconvgrad.te.tensors import ceil_to, group_sizes

STARTING = 2.0
"""Microseconds of a block in which it does not multiply: until its first tiles have come, and to write its result."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
LEAST_SUMMED = 256
"""Products that are worth a block of their own."""


@dataclass(frozen=True)
class Plan:
    """All numbers of a program."""

    tile: Tile
    depth: int
    """Summed elements of a stage."""
    stages: int
    splits: int
    cached: bool
    """Whether A is copied by way of the L1 cache."""
    chunk: int
    """How many channels meet all taps before the next ones do; 0: all."""
    units: Units

    def __str__(self) -> str:
        return f"{self.tile.rows}x{self.tile.columns}x{self.depth}"

    def numbers(self) -> dict[str, int | list[int]]:
        """By name, for people."""
        return {
            "tile": [self.tile.rows, self.tile.columns, self.depth],
            "workers": list(self.tile.workers),
            "stages": self.stages,
            "splits": self.splits,
            "cached": int(self.cached),
        }


@dataclass(frozen=True)
class Planner:
    """Chooses the numbers of a problem's program."""

    machine: Machine
    problem: Problem
    may_round: bool = False
    """Whether f32 may be rounded to TF32, to be multiplied on tensor cores."""

    @property
    def units(self) -> Units:
        """What multiplies."""
        dtype = self.problem.dtype
        return Units(self.machine, "tf32" if dtype == "f32" and self.may_round else dtype)

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
        return min(map(self._least, self.usable()))

    def _least(self, tile: int) -> float:
        """With the tile of a number."""
        found = self.units.tiles[tile]
        return min(self.cost(found, splits, cached) for splits in self.splits(found) for cached in self.ways(found))

    def usable(self) -> list[int]:
        """The tiles that suit the sums, by their numbers.

        A is read directly where one tile has all columns, and vectors of A and B are along summed elements: those of a
        data gradient are, unless its filter has the result's channels innermost.
        """
        c_group, _ = group_sizes(self.problem.geometry)
        by_columns = self.problem.filter_axes[-1] == "C" and c_group % vector_lanes(self.problem) == 0
        along_summed = self.problem.gradient is Gradient.DATA and not by_columns
        most = max(size.columns for size in self.sizes()) if along_summed else 0
        fitting = ((i, self.units.tiles[i]) for i in self.units.usable())
        return [i for i, tile in fitting if not tile.direct or 0 < most <= tile.columns]

    def is_product(self) -> bool:
        """Whether all sums are matrix products."""
        if self.problem.gradient is not Gradient.DATA:
            return True
        found = parts(self.problem, self.multiples(self.units.tiles[0]))
        return bool(found) and not any(by_x for part in found for by_x in part.over_x)

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers of the program, drawn."""
        units = self.units
        costs = {i: self._least(i) for i in self.usable()}
        tile = units.tiles[decisions.draw("tile", list(costs), min(costs, key=lambda i: costs[i]))]
        options, ways = self.splits(tile), self.ways(tile)
        splits = min(options, key=lambda count: min(self.cost(tile, count, way) for way in ways))
        splits = decisions.draw("splits", options, splits)
        cached = decisions.draw("cached", ways, min(ways, key=lambda way: self.cost(tile, splits, way)))
        depth = decisions.draw("depth", units.depths(tile), units.depths(tile)[0])
        stages = self._stages(tile, depth, cached)
        chunk = self.sizes()[0].chunk(depth) if cached else 0
        return Plan(tile, depth, decisions.draw("stages", stages, max(stages)), splits, bool(cached), chunk, units)

    def _stages(self, tile: Tile, depth: int, cached: int) -> list[int]:
        """How many stages there may be: as many as leave room for another block, and in L1 for what has to stay."""
        units, kept = self.units, self._kept(tile, depth) if cached else 0
        blocks = min(units.together(tile, kept), 2)
        share = units.room(blocks * kept) // blocks
        fitting = [stages for stages in units.stages(tile) if units.stage_bytes(tile, depth, stages) <= share]
        return fitting or [min(units.stages(tile))]

    def ways(self, tile: Tile) -> list[int]:
        """Whether A may be copied by way of the L1 cache, 0 or 1: where taps meet the same elements, and there is room.
        Where it is read directly there is no other way."""
        units, depth = self.units, self.units.depths(tile)[0]
        some = any(size.reuse(tile.rows, depth).new < 1 for size in self.sizes())
        fits = units.stage_bytes(tile, depth, min(units.stages(tile))) <= units.room(self._kept(tile, depth))
        return [1] if tile.direct else [0, 1] if some and fits else [0]

    def _kept(self, tile: Tile, depth: int) -> int:
        """Bytes that have to stay in L1."""
        return max(size.reuse(tile.rows, depth).bytes for size in self.sizes())

    def splits(self, tile: Tile) -> list[int]:
        """Into how many parts the sum may be split: each has some stages to add up."""
        most = max(max(size.summed for size in self.sizes()) // LEAST_SUMMED, 1)
        return [splits for splits in SPLITS if splits <= most]

    def sizes(self) -> list[Size]:
        """The products of a group, one for each sum."""
        return list(sizes(self.problem))

    def cost(self, tile: Tile, splits: int, cached: int) -> float:
        """Microseconds, about: the blocks of the SM that has most, packing, and adding the splits up."""
        units, groups, depth = self.units, self.problem.geometry.groups, self.units.depths(tile)[0]
        tiles = [groups * -(-size.rows // tile.rows) * -(-size.columns // tile.columns) for size in self.sizes()]
        cycles = [
            units.cycles(tile, -(-size.summed // splits), size.reuse(tile.rows, depth) if cached else None)
            for size in self.sizes()
        ]
        blocks = -(-sum(tiles) * splits // self.machine.processors)
        together = min(blocks, units.together(tile, self._kept(tile, depth) if cached and not tile.direct else 0))
        enough = min(1.0, together * units.warps(tile) / ENOUGH_WARPS)
        each = sum(count * time for count, time in zip(tiles, cycles)) / sum(tiles)
        multiplying = blocks * each / self.machine.cycles / enough
        time = LAUNCH + max(multiplying + STARTING * -(-blocks // together), self._moving())
        if splits > 1:
            sums = sum(groups * size.rows * size.columns for size in self.sizes())
            time += LAUNCH + 2 * ACCUMULATOR_BYTES * splits * sums / self.machine.bytes + 0.03 * splits
        return time + self._packing()

    def _moving(self) -> float:
        """Microseconds that the GPU's memory takes at least: operands and the result, each once."""
        item = ITEM_BYTES[self.problem.dtype]
        shapes = (*self.problem.input_shapes, self.problem.output_shape)
        return item * sum(prod(shape) for shape in shapes) / self.machine.bytes

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
