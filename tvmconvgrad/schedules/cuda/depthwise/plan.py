"""What the plans of schedules/cuda/depthwise/rule.py share, and the rule's cost model.

Depthwise gradients are bound by memory. Elements should come from global memory once, and seldom from L1: therefore
threads have tiles of positions. And enough loads must be in flight: therefore tiles are small, since the registers of a
thread limit the number of threads on an SM.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tvmconvgrad.machines.gpu import LAUNCH, GpuMachine
from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.hardware import WORD
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.data_gradient import PhaseConvolution, phase_convolutions, sums_over_taps
from tvmconvgrad.te.tensors import Index

MOST_TAPS = 32
"""The most taps along the unrolled axis, since what they read is kept in registers."""
MOST_REGISTERS = 184
"""The most registers of a thread that a search may choose, by the estimate below; up to 50 more are needed."""
MOST_PRODUCTS = 800
"""Chosen, not measured: the most products for each group of a thread. They are unrolled, and with many of them TVM's
passes take long."""
KERNELS = 3
"""Chosen, not measured: the launches in a problem's cost, however many its program has."""
PACKED_PASSES = 3.0
"""How often a weights gradient in NCX reads or writes its tensors: it reads, packs and reads them again."""
PEAK_SHARE = 0.3
"""Chosen, not measured: the share of the peak that the products reach, since most of them wait for the caches."""
OTHER_REGISTERS_F32 = 20
"""Chosen, not measured: registers of a thread besides its sums and data, in f32."""
OTHER_REGISTERS = 6
"""Chosen, not measured: the same in 16 bits, for each group of a thread, where data is also converted."""


@dataclass(frozen=True)
class DepthwisePlan:
    """All numbers of a program."""

    lanes: int
    """Neighbouring groups of a thread."""
    tile: tuple[int, ...]
    """Neighbouring positions of a thread, along each spatial axis."""
    axis: int
    """The axis along which a thread has a run of positions and unrolled taps."""
    whole: bool
    """Whether the taps along all axes are unrolled; in data gradients, those of all output phases."""
    blocks: int = 1
    """In weights gradients, the splits of K: each has a block of its own."""

    def tiles(self, space: Sequence[int]) -> tuple[int, ...]:
        """The number of tiles along each axis of so many positions."""
        return tuple(-(-extent // size) for extent, size in zip(space, self.tile))

    def positions(self, at: Sequence[Index]) -> list[list[Index]]:
        """The positions of the tile with the number `at` along each axis."""
        offsets = itertools.product(*map(range, self.tile))
        return [[begin * size + i for begin, size, i in zip(at, self.tile, offset)] for offset in offsets]

    def inside(self, position: Sequence[Index], space: Sequence[int], tiles: Sequence[int]) -> list[Index]:
        """The conditions for a position to exist, where not all tiles are full."""
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
        """Whether this is a weights gradient."""
        return self.problem.gradient is Gradient.FILTER

    @property
    def in_vectors(self) -> bool:
        """Whether groups are innermost in the operands: in NXC, or because they are packed."""
        return self.problem.data_format == "NXC" or self.is_filter

    @property
    def axis(self) -> int:
        """The axis of the run: the last one, or, if neighbouring threads lie along that, the one before."""
        rank = self.problem.geometry.rank
        return rank - 1 if self.in_vectors else max(rank - 2, 0)

    @cached_property
    def phases(self) -> tuple[PhaseConvolution, ...]:
        """The phases of a data gradient."""
        return phase_convolutions(self.problem) if self.problem.gradient is Gradient.DATA else ()

    def is_applicable(self) -> bool:
        """Whether it is depthwise, has at most MOST_TAPS unrolled taps, and a data gradient sums over taps (not over
        positions of dy)."""
        geometry = self.problem.geometry
        if not geometry.groups == geometry.c == geometry.o or geometry.k[self.axis] > MOST_TAPS:
            return False
        return self.problem.gradient is not Gradient.DATA or sums_over_taps(self.phases)

    def least_cost(self) -> float:
        """Microseconds, about: the longer of memory's time and the products'."""
        passes = PACKED_PASSES if self.is_filter and self.problem.data_format == "NCX" else 1.0
        return KERNELS * LAUNCH + max(passes * self.problem.tensor_bytes / self.machine.bytes_per_us, self._computing())

    def _computing(self) -> float:
        """Microseconds of the products."""
        return self.problem.flops / (PEAK_SHARE * self.machine.f32_flops)

    @property
    def widths(self) -> list[int]:
        """The numbers of groups that a thread may have."""
        return [width for width in (1, 2, 4, 8) if self.problem.geometry.groups % width == 0 and self.in_vectors] or [1]

    def words(self, lanes: int) -> float:
        """Registers (words) of a vector of groups in the user's type."""
        return lanes * ITEM_BYTES[self.problem.dtype] / WORD

    def registers(self, lanes: int, sums: int, vectors: int) -> float:
        """Registers of a thread, about. With f32, which needs no conversion, the compiler keeps about half of the data
        in registers at a time."""
        data = vectors * max(self.words(lanes), 1)
        others = data / 2 + OTHER_REGISTERS_F32 if self.problem.dtype == "f32" else data + OTHER_REGISTERS * lanes
        return lanes * sums + others

    def tile(self, run: int, rows: int) -> tuple[int, ...]:
        """A run along its axis, and rows along the one before."""
        sizes = {self.axis: run, self.axis - 1: rows}
        return tuple(sizes.get(axis, 1) for axis in range(self.problem.geometry.rank))
