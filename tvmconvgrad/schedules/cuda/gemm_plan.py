"""The numbers of schedules/cuda/gemm.py, by a small model of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from tvmconvgrad.schedules.cuda import clusters
from tvmconvgrad.schedules.cuda.boxes import reachable
from tvmconvgrad.schedules.cuda.copies import Copies
from tvmconvgrad.schedules.cuda.gemm_sizes import Size, sizes
from tvmconvgrad.schedules.cuda.gemm_tiles import ACCUMULATOR_BYTES, ENOUGH_WARPS, Loads, Tile, Units
from tvmconvgrad.schedules.cuda.machine import LAUNCH, Machine
from tvmconvgrad.schedules.cuda.operands import What, lies_in_vectors, operands, vector_lanes
from tvmconvgrad.schedules.cuda.swizzled import LINE_BYTES
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import parts
from tvmconvgrad.te.tensors import ceil_to, group_sizes

STARTING = 2.0
"""Microseconds of a block in which it does not multiply: until its first tiles have come, and to write its result."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
MEETING = 1.0
"""Microseconds until the blocks of a cluster have met, before they read each other's sums and behind it."""
CLUSTER_BYTES = 16
"""Bytes that an SM reads in a cycle from others of its cluster, while all do."""
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
    joined: int
    """How many splits of a tile are a cluster, which adds them up."""
    copies: Copies
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
            "joined": self.joined,
            "copies": int(self.copies),
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
        return min(self._best(found, splits, copies) for splits in self.splits(found) for copies in self.ways(found))

    def _best(self, tile: Tile, splits: int, copies: Copies) -> float:
        """With splits added up as is best."""
        return min(self.cost(tile, splits, copies, joined) for joined in self.joins(splits, copies))

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
        splits = min(options, key=lambda count: min(self._best(tile, count, way) for way in ways))
        splits = decisions.draw("splits", options, splits)
        copies = Copies(decisions.draw("copies", ways, min(ways, key=lambda way: self._best(tile, splits, way))))
        joins = self.joins(splits, copies)
        joined = decisions.draw("joined", joins, min(joins, key=lambda join: self.cost(tile, splits, copies, join)))
        depth = decisions.draw("depth", units.depths(tile), units.depths(tile)[0])
        stages = self._stages(tile, depth, copies)
        chunk = self.sizes()[0].chunk(depth) if copies is Copies.CACHED else 0
        stages_drawn = decisions.draw("stages", stages, max(stages))
        return Plan(tile, depth, stages_drawn, splits, joined, copies, chunk, units)

    def _stages(self, tile: Tile, depth: int, copies: Copies) -> list[int]:
        """How many stages there may be: as many as leave room for another block, and in L1 for what has to stay."""
        units, kept = self.units, self._kept(tile, depth) if copies is Copies.CACHED else 0
        blocks = min(units.together(tile, kept), 2)
        share = units.room(blocks * kept) // blocks
        fitting = [stages for stages in units.stages(tile) if units.stage_bytes(tile, depth, stages) <= share]
        return fitting or [min(units.stages(tile))]

    def ways(self, tile: Tile) -> list[Copies]:
        """How operands may be copied, the simplest first: by way of the L1 cache where taps meet the same elements, and
        there is room. Where A is read directly there is no other way."""
        units, depth = self.units, self.units.depths(tile)[0]
        some = any(size.reuse(tile.rows, depth).new < 1 for size in self.sizes())
        fits = units.stage_bytes(tile, depth, min(units.stages(tile))) <= units.room(self._kept(tile, depth))
        if tile.direct:
            return [Copies.CACHED]
        return [*self._boxes(tile), Copies.PAST_L1, *([Copies.CACHED] if some and fits else [])]

    def _boxes(self, tile: Tile) -> list[Copies]:
        """How the engine may copy: whole lines of channels, each of one tap, and tiles of one residue; so are those of
        two blocks that share A. Of groups there is one, since what is behind the last channel has to be zero."""
        problem, units = self.problem, self.units
        geometry, data = problem.geometry, problem.gradient is Gradient.DATA
        (c, o), line = group_sizes(geometry), LINE_BYTES // units.item
        channels, residues = (o, prod(geometry.strides)) if data else (c, 1)
        alone, together = (residues == 1 or c % (blocks * tile.columns) == 0 for blocks in (1, 2))
        if not units.by_groups(tile) or geometry.groups > 1 or channels % line or not alone or not reachable(geometry):
            return []
        rows = min(-(-size.rows // tile.rows) for size in self.sizes())
        columns = min(-(-size.columns // tile.columns) for size in self.sizes())
        pairs = [Copies.B_FOR_TWO] * (rows > 1) + [Copies.A_FOR_TWO] * (columns > 1 and together)
        return [Copies.BOXES, *pairs]

    def _kept(self, tile: Tile, depth: int) -> int:
        """Bytes that have to stay in L1."""
        return max(size.reuse(tile.rows, depth).bytes for size in self.sizes())

    def splits(self, tile: Tile) -> list[int]:
        """Into how many parts the sum may be split: each has some stages to add up."""
        most = max(max(size.summed for size in self.sizes()) // LEAST_SUMMED, 1)
        return [splits for splits in SPLITS if splits <= most]

    def joins(self, splits: int, copies: Copies) -> list[int]:
        """How many splits may be a cluster: numbers that fill the parts of a GPU evenly."""
        most = clusters.MOST // copies.blocks if self.machine.has_clusters else 1
        return [1, *(count for count in (2, 4, 8) if count <= most and splits % count == 0)]

    def sizes(self) -> list[Size]:
        """The products of a group, one for each sum."""
        return list(sizes(self.problem))

    def cost(self, tile: Tile, splits: int, copies: Copies, joined: int = 1) -> float:
        """Microseconds, about: the blocks of the SM that has most, or what all blocks load from the L2 cache, packing,
        and adding the splits up."""
        units, groups, depth = self.units, self.problem.geometry.groups, self.units.depths(tile)[0]
        all_cycles = all_loaded = all_tiles = 0.0
        for size in self.sizes():
            tiles = groups * -(-size.rows // tile.rows) * -(-size.columns // tile.columns)
            loads, summed = self._loads(size, tile, copies), -(-size.summed // splits)
            all_tiles += tiles
            all_cycles += tiles * units.cycles(tile, summed, loads)
            all_loaded += tiles * splits * units.loaded(tile, summed, loads)
        blocks = ceil(all_tiles * splits / self.machine.processors)
        kept = self._kept(tile, depth) if copies is Copies.CACHED and not tile.direct else 0
        together = min(blocks, units.together(tile, kept))
        enough = min(1.0, together * units.warps(tile) / ENOUGH_WARPS)
        loading = all_loaded / self.machine.processors / self.machine.l2_bytes
        multiplying = max(blocks * all_cycles / all_tiles / enough, loading) / self.machine.cycles
        time = LAUNCH + max(multiplying + STARTING * ceil(blocks / together), self._moving())
        if joined > 1:
            time += MEETING + ACCUMULATOR_BYTES * tile.rows * tile.columns / CLUSTER_BYTES / self.machine.cycles
        if splits > joined:
            count = splits // joined
            sums = sum(groups * size.rows * size.columns for size in self.sizes())
            time += LAUNCH + 2 * ACCUMULATOR_BYTES * count * sums / self.machine.bytes + 0.03 * count
        return time + self._packing()

    def _loads(self, size: Size, tile: Tile, copies: Copies) -> Loads:
        """What of a tile comes from the L2 cache."""
        if copies is Copies.CACHED:
            return Loads(size.reuse(tile.rows, self.units.depths(tile)[0]).new, 1.0, copies)
        a, b = (0.5 if shared else 1.0 for shared in copies.shared)
        return Loads(a, b, copies)

    def _moving(self) -> float:
        """Microseconds that the GPU's memory takes at least: operands and the result, each once."""
        item = ITEM_BYTES[self.problem.dtype]
        shapes = (*self.problem.input_shapes, self.problem.output_shape)
        return item * sum(prod(shape) for shape in shapes) / self.machine.bytes

    def _packing(self) -> float:
        """Microseconds of packing what is not read where it lies, about."""
        geometry, lanes = self.problem.geometry, vector_lanes(self.problem)
        c_group, o_group = group_sizes(geometry)
        c, o = geometry.groups * ceil_to(c_group, lanes), geometry.groups * ceil_to(o_group, lanes)
        sizes: dict[What, int] = {
            "y": geometry.batch * prod(geometry.y) * c,
            "x": geometry.batch * prod(geometry.x) * o,
            "filter": prod(geometry.k) * c * ceil_to(o_group, lanes),
        }
        packed = [sizes[what] for what in operands(self.problem) if not lies_in_vectors(self.problem, what)]
        return sum(LAUNCH + 2.5 * ITEM_BYTES[self.problem.dtype] * size / self.machine.bytes for size in packed)
