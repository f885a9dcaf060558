"""What the plans of schedules/cuda/depthwise/rule.py share, and a small model of the machine.

Depthwise gradients wait for memory. What counts is that elements come from the GPU's memory once and from the L1 cache
seldom, which is why threads have tiles of positions, and that enough loads are under way, which is why tiles are small:
an SM has as many threads as their registers allow.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tvmconvgrad.machines.gpu import LAUNCH, GpuMachine
from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import Part, parts
from tvmconvgrad.te.tensors import Index

THREADS = 256
WORD = 4
MOST_TAPS = 32
"""Taps along the run at most: windows are in registers."""
MOST_REGISTERS = 184
"""Of a thread, by the estimate below, as far as a search may go: up to 50 more are needed."""
MOST_PRODUCTS = 800
"""For each group of a thread: they are written out, and TVM's passes take long with many."""


@dataclass(frozen=True)
class DepthwisePlan:
    """All numbers of a program."""

    lanes: int
    """Neighbouring groups of a thread."""
    tile: tuple[int, ...]
    """Neighbouring positions of a thread, along each spatial axis."""
    axis: int
    """Along which axis neighbours meet the same elements with taps that are written out: the run."""
    whole: bool
    """Whether all taps are, and not only those along the run; of data gradients, those of all phases."""
    blocks: int = 1
    """Parts of all positions, each a block's, of filter gradients."""

    def tiles(self, space: Sequence[int]) -> tuple[int, ...]:
        """How many tiles so many positions along each axis are."""
        return tuple(-(-extent // size) for extent, size in zip(space, self.tile))

    def positions(self, at: Sequence[Index]) -> list[list[Index]]:
        """The positions of a tile, which is the so many-th along each axis."""
        offsets = itertools.product(*map(range, self.tile))
        return [[begin * size + i for begin, size, i in zip(at, self.tile, offset)] for offset in offsets]

    def inside(self, position: Sequence[Index], space: Sequence[int], tiles: Sequence[int]) -> list[Index]:
        """Whether there is such a position, where not all tiles are full."""
        axes = zip(position, space, tiles, self.tile)
        bounds = (writing.below(at, extent, count * size) for at, extent, count, size in axes)
        return [*itertools.chain(*bounds)]


@dataclass(frozen=True)
class DepthwisePlanner(ABC):
    """Chooses the numbers of a problem's program."""

    machine: GpuMachine
    problem: Problem

    @abstractmethod
    def plan(self, decisions: Decisions) -> DepthwisePlan:
        """The numbers of the program, drawn."""

    @property
    def is_filter(self) -> bool:
        """Whether the filter's gradient is asked for."""
        return self.problem.gradient is Gradient.FILTER

    @property
    def in_vectors(self) -> bool:
        """Whether groups lie innermost in what is read: in NXC, or when it is packed."""
        return self.problem.data_format == "NXC" or self.is_filter

    @property
    def axis(self) -> int:
        """The axis of the run: the last, unless neighbouring threads have that."""
        rank = self.problem.geometry.rank
        return rank - 1 if self.in_vectors else max(rank - 2, 0)

    @cached_property
    def phase_groups(self) -> list[Part]:
        """The phases of a data gradient."""
        return parts(self.problem, Multiples()) if self.problem.gradient is Gradient.DATA else []

    def cost(self) -> float | None:
        """Microseconds, about: what memory takes. None for what the rule does not take."""
        geometry = self.problem.geometry
        if not geometry.groups == geometry.c == geometry.o or geometry.k[self.axis] > MOST_TAPS:
            return None
        is_data = self.problem.gradient is Gradient.DATA
        if is_data and (not self.phase_groups or any(by_y for phase in self.phase_groups for by_y in phase.over_y)):
            return None
        passes = 3.0 if self.is_filter and self.problem.data_format == "NCX" else 1.0
        return 3 * LAUNCH + max(passes * self.problem.tensor_bytes / self.machine.bytes, self._computing())

    def _computing(self) -> float:
        """Microseconds of the products, most of which wait for data in the caches."""
        return self.problem.flops / (0.3 * self.machine.f32_flops)

    @property
    def widths(self) -> list[int]:
        """How many groups a thread may have."""
        return [width for width in (1, 2, 4, 8) if self.problem.geometry.groups % width == 0 and self.in_vectors] or [1]

    def words(self, lanes: int) -> float:
        """Registers of a vector of groups, as it lies in memory."""
        return lanes * ITEM_BYTES[self.problem.dtype] / WORD

    def registers(self, lanes: int, sums: int, vectors: int) -> float:
        """Registers of a thread, about: with f32, which needs no conversion, the compiler has half of the data at hand
        that it might have."""
        data = vectors * max(self.words(lanes), 1)
        return lanes * sums + (data / 2 + 20 if self.problem.dtype == "f32" else data + 6 * lanes)

    def tile(self, run: int, rows: int) -> tuple[int, ...]:
        """A run along its axis, and rows along the one before."""
        sizes = {self.axis: run, self.axis - 1: rows}
        return tuple(sizes.get(axis, 1) for axis in range(self.problem.geometry.rank))
