"""The numbers of schedules/cuda/gemm/rule.py: from the cost model in cost.py, or from a search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from tvmconvgrad.machines.gpu import LAUNCH, GpuMachine
from tvmconvgrad.schedules.cuda import clusters
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import SWIZZLE_BYTES
from tvmconvgrad.schedules.cuda.gemm.copies.tma_tiles import reachable
from tvmconvgrad.schedules.cuda.gemm.cost import Cost
from tvmconvgrad.schedules.cuda.gemm.operands import What, lies_in_vectors, operands
from tvmconvgrad.schedules.cuda.gemm.shapes import GemmShape, gemm_shapes
from tvmconvgrad.schedules.cuda.gemm.tiles import GemmTile, Units
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions import Blocking
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.data_gradient import phase_convolutions, sums_over_taps
from tvmconvgrad.te.tensors import ceil_to, group_sizes

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)
MOST_BLOCKS = 8
"""Chosen, not measured: split-K makes at most so many blocks for each SM by default. More would balance the SMs better,
and leave more partial sums to add up."""
LEAST_K = 256
"""Chosen, not measured: a split of K has at least so many elements, so that a block's steps outweigh its prologue and
epilogue."""
PACKING_PASSES = 2.5
"""Chosen, not measured: the time to pack an operand, as a multiple of the time to read it once from memory. A copy
would have 2."""


@dataclass(frozen=True)
class GemmPlan:
    """All numbers of a program."""

    tile: GemmTile
    block_k: int
    """Elements of K in a stage."""
    stages: int
    split_k: int
    in_cluster: int
    """The number of splits of a tile that are one cluster, which adds them up."""
    copies: Copies
    channel_block: int
    """The size of a block of A's channels (`Product.channel_block`); 0: all."""
    units: Units

    def __str__(self) -> str:
        return f"{self.tile.block_m}x{self.tile.block_n}x{self.block_k}"

    def numbers(self) -> dict[str, int | list[int]]:
        """The numbers by name, as `inspect` shows them."""
        return {
            "tile": [self.tile.block_m, self.tile.block_n, self.block_k],
            "workers": list(self.tile.workers),
            "stages": self.stages,
            "split_k": self.split_k,
            "in_cluster": self.in_cluster,
            "copies": int(self.copies),
        }


class _Candidate(NamedTuple):
    """Numbers that the model gives a cost, in the order in which they are drawn."""

    tile: int
    split_k: int
    copies: int
    in_cluster: int
    stages: int


@dataclass(frozen=True)
class GemmPlanner:
    """Chooses the numbers of a problem's program."""

    machine: GpuMachine
    problem: Problem
    may_round: bool = False
    """Whether f32 may be rounded to TF32, to be multiplied on tensor cores."""

    @property
    def units(self) -> Units:
        """The units that multiply."""
        dtype = self.problem.dtype
        return Units(self.machine, "tf32" if dtype == "f32" and self.may_round else dtype)

    def blocking(self, tile: GemmTile) -> Blocking:
        """The blocks that the expression is rounded up to: channels come in whole vectors. In a data gradient, a tile
        along N has channels of one phase, or all phases share their first positions."""
        lanes = vector_lanes(self.problem)
        if self.problem.gradient is Gradient.DATA:
            return Blocking(c=tile.block_n, o=lanes)
        return Blocking(c=lanes, o=lanes)

    def is_applicable(self) -> bool:
        """Whether the sums are matrix products, and the GPU is no older than sm_80."""
        return self.machine.has_copies and self.is_product()

    def least_cost(self) -> float:
        """Microseconds, about, of the best candidate."""
        return min(cost for cost, _ in self._candidates) + self._packing()

    @cached_property
    def _candidates(self) -> list[tuple[float, _Candidate]]:
        """(microseconds, candidate) of all candidates."""
        found: list[tuple[float, _Candidate]] = []
        for number in self.tile_candidates():
            tile = self.units.tiles[number]
            for copies in self.copy_modes(tile):
                cost = self.cost(tile, copies)
                enough = max(MOST_BLOCKS * self.machine.sms // cost.tiles, 1)
                for split_k in (each for each in self.split_k(tile) if each <= enough):
                    for in_cluster, stages in itertools.product(
                        self.cluster_splits(split_k, copies), self._most_stages(cost)
                    ):
                        candidate = _Candidate(number, split_k, copies, in_cluster, stages)
                        found.append((cost.microseconds(split_k, in_cluster, stages), candidate))
        return found

    def cost(self, tile: GemmTile, copies: Copies, block_k: int | None = None) -> Cost:
        """The cost of the kernel with a tile, a way to copy, and a BLOCK_K (by default the tile's usual one)."""
        block_k = block_k or self.units.block_ks(tile)[0]
        return Cost(
            self.units, tuple(self.shapes()), self.problem.geometry.groups, self._moved(), tile, block_k, copies
        )

    def tile_candidates(self) -> list[int]:
        """The numbers of the tiles that suit the sums.

        A tile that reads A directly must have all of N, and vectors of A and B must lie along K. Those of a data
        gradient do, unless its filter has the result's channels innermost.
        """
        c_group, _ = group_sizes(self.problem.geometry)
        along_n = self.problem.filter_axes[-1] == "C" and c_group % vector_lanes(self.problem) == 0
        along_k = self.problem.gradient is Gradient.DATA and not along_n
        most = max(shape.n for shape in self.shapes()) if along_k else 0
        fitting = ((i, self.units.tiles[i]) for i in self.units.tile_candidates())
        return [i for i, tile in fitting if not tile.a_from_registers or 0 < most <= tile.block_n]

    def is_product(self) -> bool:
        """Whether all sums are matrix products."""
        if self.problem.gradient is not Gradient.DATA:
            return True
        return sums_over_taps(phase_convolutions(self.problem, self.units.tiles[0].block_n))

    def plan(self, decisions: Decisions) -> GemmPlan:
        """The numbers of the program, drawn one after the other; each default is the best
        choice, given the numbers drawn before it."""
        left = self._candidates

        def draw(name: str, options: Sequence[int]) -> int:
            nonlocal left
            drawn = decisions.draw(name, options, getattr(min(left)[1], name))
            # If no candidate has the drawn number, the later defaults ignore it.
            left = [each for each in left if getattr(each[1], name) == drawn] or left
            return drawn

        tile = self.units.tiles[draw("tile", self.tile_candidates())]
        split_k, copies = draw("split_k", self.split_k(tile)), Copies(draw("copies", self.copy_modes(tile)))
        in_cluster = draw("in_cluster", self.cluster_splits(split_k, copies))
        block_ks = self.units.block_ks(tile)
        block_k = decisions.draw("block_k", block_ks, block_ks[0])
        cost = self.cost(tile, copies, block_k)
        best = min(self._most_stages(cost), key=lambda stages: cost.microseconds(split_k, in_cluster, stages))
        stages = decisions.draw("stages", self._stages(cost), best)
        channel_block = self.shapes()[0].channel_block(block_k) if copies is Copies.CACHED else 0
        return GemmPlan(tile, block_k, stages, split_k, in_cluster, copies, channel_block, self.units)

    def _stages(self, cost: Cost) -> list[int]:
        """The numbers of stages that fit shared memory."""
        units, room = self.units, self.units.room(cost.l1_bytes)
        options = units.stages(cost.tile, cost.copies)
        fitting = [each for each in options if units.stage_bytes(cost.tile, cost.block_k, each) <= room]
        return fitting or [min(options)]

    def _most_stages(self, cost: Cost) -> list[int]:
        """For each occupancy the most stages that allow it. `mma` and FMA tiles get only the largest number of stages:
        they gain little by more blocks, for which the compiler spills registers."""
        found = {cost.occupancy(stages): stages for stages in self._stages(cost)}
        return list(found.values()) if self.units.uses_wgmma(cost.tile) else [max(found.values())]

    def copy_modes(self, tile: GemmTile) -> list[Copies]:
        """The ways to copy operands: by TMA, past L1, or through L1 if taps read the same elements and there is room
        for them. A tile that reads A directly reads it through L1."""
        if tile.a_from_registers:
            return [Copies.CACHED]
        units, block_k, cached = self.units, self.units.block_ks(tile)[0], self.cost(tile, Copies.CACHED)
        some = any(shape.reuse(tile.block_m, block_k).new < 1 for shape in self.shapes())
        fits = units.stage_bytes(tile, block_k, min(units.stages(tile, Copies.CACHED))) <= units.room(cached.l1_bytes)
        return [*self._tma_modes(tile), Copies.PAST_L1, *([Copies.CACHED] if some and fits else [])]

    def _tma_modes(self, tile: GemmTile) -> list[Copies]:
        """The ways to copy by TMA. A line of a tile must be channels of one tap, and a tile (or the tiles of two blocks
        that share A) must be of one phase. There must be one group, since what lies behind the last channel must be
        zero."""
        problem, units = self.problem, self.units
        geometry, data = problem.geometry, problem.gradient is Gradient.DATA
        (c, o), line = group_sizes(geometry), SWIZZLE_BYTES // units.item
        channels, phases = (o, prod(geometry.strides)) if data else (c, 1)
        alone, paired = (phases == 1 or c % (blocks * tile.block_n) == 0 for blocks in (1, 2))
        if not units.uses_wgmma(tile) or geometry.groups > 1 or channels % line or not alone or not reachable(geometry):
            return []
        rows = min(-(-shape.m // tile.block_m) for shape in self.shapes())
        columns = min(-(-shape.n // tile.block_n) for shape in self.shapes())
        pairs = [Copies.TMA_MULTICAST_B] * (rows > 1) + [Copies.TMA_MULTICAST_A] * (columns > 1 and paired)
        return [Copies.TMA, *pairs]

    def split_k(self, tile: GemmTile) -> list[int]:
        """The numbers of splits of K; each split has at least `LEAST_K` elements."""
        most = max(max(shape.k for shape in self.shapes()) // LEAST_K, 1)
        return [split_k for split_k in SPLITS if split_k <= most]

    def cluster_splits(self, split_k: int, copies: Copies) -> list[int]:
        """The numbers of splits that may be one cluster, at most as many as every GPU with clusters supports."""
        most = clusters.MOST // copies.blocks if self.machine.has_clusters else 1
        return [1, *(count for count in (2, 4, 8) if count <= most and split_k % count == 0)]

    def shapes(self) -> list[GemmShape]:
        """The shapes of a group's products, one for each sum."""
        return list(gemm_shapes(self.problem))

    def _moved(self) -> int:
        """Bytes of the operands and the result, each once."""
        shapes = (*self.problem.input_shapes, self.problem.output_shape)
        return ITEM_BYTES[self.problem.dtype] * sum(prod(shape) for shape in shapes)

    def _packing(self) -> float:
        """Microseconds, about, to pack the operands that are not read in place."""
        geometry, lanes = self.problem.geometry, vector_lanes(self.problem)
        c_group, o_group = group_sizes(geometry)
        c, o = geometry.groups * ceil_to(c_group, lanes), geometry.groups * ceil_to(o_group, lanes)
        sizes: dict[What, int] = {
            "x": geometry.batch * prod(geometry.x) * c,
            "y": geometry.batch * prod(geometry.y) * o,
            "filter": prod(geometry.k) * c * ceil_to(o_group, lanes),
        }
        packed = [sizes[what] for what in operands(self.problem) if not lies_in_vectors(self.problem, what)]
        passes = PACKING_PASSES * ITEM_BYTES[self.problem.dtype]
        return sum(LAUNCH + passes * size / self.machine.bytes_per_us for size in packed)
