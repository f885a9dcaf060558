"""A problem in Winograd's tiles: its sizes, and the cost of its parts in cycles of one core. The planners use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BROADCASTING, PACKING, TRANSPOSING, workspace_room
from tvmconvgrad.schedules.cpu.micro_kernel import tile_efficiency
from tvmconvgrad.schedules.cpu.winograd.tiles import axes_of
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.winograd.axes import TiledAxis

TRANSFORMING, TRANSFORMING_FAR = 2.6, 9.0
"""Cycles to load, combine and store a vector of products, in L2 or beyond it. Sums that change with half and with
twice, and their times beside today's: TRANSFORMING 6, 1.36 and 3, 1.04; TRANSFORMING_FAR 2, 1.09 and 4, 1.11
(benchmarks/constants.py)."""

OPERANDS, FAR_OPERANDS = (0.15, 0.3), (0.6, 0.9)
"""What loading an operand of M and one of N costs a register tile, in FMAs, from L2 or beyond it. Sums that change with
half and with twice, and their times beside today's: OPERANDS 3, 1.11 and 7, 1.01; FAR_OPERANDS 4, 1.03 and 0
(benchmarks/constants.py)."""

PANELS_FAR = 0.02
"""Cycles for a byte of a transformed operand from beyond L2 that each work item reads. With half of it 1 sum changes,
and takes 0.97 times as long; twice changes no sum (benchmarks/constants.py)."""

K_BLOCKS = 8
"""So many blocks of the filter's K channels are packed one after the other, so that the core's prefetcher follows its
rows, which may lie a page apart. With half of it 21 sums change, and take 1.03 times as long; with twice 15 sums, 1.01
times (benchmarks/constants.py)."""

LEAST_WORK_ITEMS = 16
"""The least number of parallel work items that a kernel should have. With half of it 5 sums change, and take 1.00 times
as long; with twice 3 sums, 1.05 times (benchmarks/constants.py)."""

MOST_VECTORS = 6
"""A register tile has at most so many vectors of N."""


@dataclass(frozen=True)
class WinogradSizes:
    """A problem in tiles, on a machine; the tiles along each axis are rounded up to `multiples`."""

    machine: CpuMachine
    problem: Problem
    tile_products: tuple[int, ...]
    """Products of a tile along each tiled axis."""
    multiples: tuple[int, ...]

    @cached_property
    def axes(self) -> list[TiledAxis]:
        """The spatial axes."""
        return axes_of(self.problem, self.tile_products, self.multiples)

    @property
    def products(self) -> int:
        """Products of a tile, for a pair of channels."""
        return prod(axis.products for axis in self.axes if axis.tiled)

    @property
    def taps(self) -> int:
        """Taps of the other axes."""
        return prod(axis.taps for axis in self.axes if not axis.tiled)

    @property
    def phase_taps(self) -> int:
        """Taps of an output phase, along all axes."""
        return prod(axis.taps for axis in self.axes)

    @property
    def phases(self) -> int:
        """Output phases of a data gradient: so many times its channels does the result of the sum have."""
        return prod(axis.phases for axis in self.axes)

    @property
    def shifts(self) -> int:
        """So many tiles that begin from neighbours are made of the data for one tile of each phase."""
        return prod(axis.shifts for axis in self.axes if axis.tiled)

    @property
    def tiles(self) -> int:
        """All tiles of a phase, of all images."""
        return self.problem.geometry.batch * prod(axis.tiles for axis in self.axes)

    @property
    def positions(self) -> int:
        """The positions that the tiles cover, of all images."""
        return self.problem.geometry.batch * prod(axis.covered for axis in self.axes)

    def efficiency(self, m: int, n: int, is_near: bool = True) -> float:
        """The share of peak FLOPs that a register tile of `m` tiles x `n` channels may reach; 0 if it spills."""
        of_m, of_n = OPERANDS if is_near else FAR_OPERANDS
        of_m = of_m if self.machine.broadcasts else of_m + BROADCASTING
        return tile_efficiency(self.machine, m, n // self.machine.lanes, self.machine.lanes, (of_m, of_n))

    def summing(self, m: int, n: int, channels: int, is_near: bool = True) -> float:
        """Cycles for the products of so many pairs of `channels`, by register tiles of `m` x `n`."""
        multiplied = self.products * self.taps * self.tiles * channels
        return multiplied / (self.machine.fmas * self.machine.lanes * self.efficiency(m, n, is_near))

    def moving(self, channels: int) -> float:
        """Cycles to pad data of so many channels, or to copy a result."""
        return (PACKING if self.problem.data_format == "NXC" else TRANSPOSING) * channels * self.positions

    def transforming(self, channels: int, is_near: bool) -> float:
        """Cycles to transform data of so many channels, or to transform a result back."""
        vectors = self.products * self.tiles * channels / self.machine.lanes
        return vectors * (TRANSFORMING if is_near else TRANSFORMING_FAR)

    def transforming_filter(self, channels: int, stays: bool = False) -> float:
        """Cycles to transform the filter of so many pairs of channels, or to transform its gradient back. A large one
        goes through memory, unless the work item that transforms it also uses it (`stays`)."""
        vectors = self.products * self.taps * channels / self.machine.lanes
        is_near = stays or self.is_near(self.products * self.taps * channels)
        moving = self.machine.memory_cycles_per_byte * F32_BYTES * self.machine.lanes
        return vectors * (TRANSFORMING + (0.0 if is_near else 2 * moving))  # stored, and loaded again

    def part(self, images: int, units: Sequence[int], wanted: int) -> list[int]:
        """The images, and the tiles or positions along each axis, of one work item: a multiple of `units` along each,
        and about `wanted` tiles in all.

        It is longest along the last axis, then along axes that are summed directly, since neighbours along them share
        data. Interleaved tiles stay together and count as one.
        """
        extents = [images, *(axis.runs for axis in self.axes)]
        last = len(extents) - 1

        def share(place: int) -> tuple[bool, bool]:
            axis = self.axes[place - 1]
            return place == last, place > 0 and axis.taps > 1 and not axis.tiled

        order = sorted(range(len(extents)), key=share)
        least = prod(units) * self.interleaved
        inner = inner_extents([extents[place] // units[place] for place in order], max(wanted // least, 1))
        found = dict(zip(order, inner))
        return [found[place] * unit for place, unit in enumerate(units)]

    @property
    def interleaved(self) -> int:
        """The number of tiles that interleave, over all axes."""
        return prod(axis.interleaved for axis in self.axes)

    def adding(self, sums: int, times: float, is_near: bool) -> float:
        """Cycles to add to so many f32 sums, in L2 or beyond it, so many times."""
        return times * sums / self.machine.lanes * (TRANSFORMING if is_near else TRANSFORMING_FAR)

    def is_near(self, elements: int) -> bool:
        """Whether so many f32 elements fit L2. It counts as twice the size that blocks should have, since most of
        today's cores have that."""
        return F32_BYTES * elements <= 2 * self.machine.l2_blocks

    @property
    def room(self) -> int:
        """So many f32 elements of workspace are within the tensors' bytes."""
        return int(workspace_room(self.problem)) // F32_BYTES
