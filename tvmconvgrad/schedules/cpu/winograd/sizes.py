"""A problem by Winograd's tiles: its sizes, and what its parts cost, in cycles, which two schedules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BROADCASTING, PACKING, TRAFFIC, TRANSPOSING
from tvmconvgrad.schedules.factors import inner_extents
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.winograd import PRODUCTS, Axis, axes_of, tiled_axes

TRANSFORMING, TRANSFORMING_FAR = 2.6, 9.0
"""To load, combine and store a vector of products, in the L2 cache or beyond it."""

OPERANDS, FAR_OPERANDS = (0.15, 0.3), (0.6, 0.9)
"""What a row's and a column's operand of a register tile costs, as parts of an FMA, from the L2 cache or beyond it."""

WORTH = 1.25
"""How much less than direct sums it must be expected to cost, since more memory is taken, and the model is coarse."""

SUMMED = 16
"""Channels of a block: a cache line of f32."""

LEAST_TASKS = 16
"""Parallel work items, if there may be so many."""

MOST_VECTORS = 6
"""Columns of a register tile, in vectors."""


@dataclass(frozen=True)
class WinogradSizes:
    """A problem by tiles, on a machine; tiles along each axis are rounded up to a multiple."""

    machine: CpuMachine
    problem: Problem
    multiples: tuple[int, ...]

    @cached_property
    def axes(self) -> list[Axis]:
        """The spatial axes."""
        return axes_of(self.problem, self.multiples)

    @property
    def tiled(self) -> int:
        """Along how many axes there are tiles."""
        return sum(tiled_axes(self.problem))

    @property
    def products(self) -> int:
        """Products of a tile, for a pair of channels."""
        return prod([PRODUCTS] * self.tiled)

    @property
    def taps(self) -> int:
        """Taps of the other axes."""
        return prod(axis.taps for axis in self.axes if not axis.tiled)

    @property
    def tiles(self) -> int:
        """All tiles, of all images."""
        return self.problem.geometry.batch * prod(axis.tiles for axis in self.axes)

    @property
    def elements(self) -> int:
        """Elements of the inputs and the result."""
        return sum(prod(shape) for shape in (*self.problem.input_shapes, self.problem.output_shape))

    @property
    def positions(self) -> int:
        """The positions that they cover."""
        return self.problem.geometry.batch * prod(axis.covered for axis in self.axes)

    def efficiency(self, rows: int, columns: int, is_near: bool = True) -> float:
        """The share of peak that a register tile may reach; 0 when it spills."""
        row, column = OPERANDS if is_near else FAR_OPERANDS
        row = row if self.machine.broadcasts else row + BROADCASTING
        return self.machine.tile_efficiency(rows, columns // self.machine.lanes, self.machine.lanes, (row, column))

    def summing(self, rows: int, columns: int, channels: int, is_near: bool = True) -> float:
        """The products of so many pairs of channels, by register tiles of so many rows and columns."""
        multiplied = self.products * self.taps * self.tiles * channels
        return multiplied / (2 * self.machine.lanes * self.efficiency(rows, columns, is_near))

    def moving(self, channels: int) -> float:
        """To extend data of so many channels, or to copy a result."""
        return (PACKING if self.problem.data_format == "NXC" else TRANSPOSING) * channels * self.positions

    def transforming(self, channels: int, is_near: bool) -> float:
        """To transform data of so many channels, or a result."""
        vectors = self.products * self.tiles * channels / self.machine.lanes
        return vectors * (TRANSFORMING if is_near else TRANSFORMING_FAR)

    def transforming_filter(self, channels: int, stays: bool = False) -> float:
        """To transform the filter of so many pairs of channels, or its gradient; a large one goes through memory,
        unless what is transformed `stays` with a work item."""
        vectors = self.products * self.taps * channels / self.machine.lanes
        is_near = stays or self.is_near(self.products * self.taps * channels)
        far = 0.0 if is_near else 2 * TRAFFIC * F32_BYTES * self.machine.lanes  # stored, and loaded again
        return vectors * (TRANSFORMING + far)

    def part(self, images: int, units: Sequence[int], wanted: int) -> list[int]:
        """Of `images`, and of tiles or positions along each axis, how many belong together: a multiple of `units` along
        each, about `wanted` tiles.

        The last axis counts most, then axes that are summed directly, since neighbours along them share data. Tiles
        that interleave stay together, and count as one here.
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
        """How many tiles interleave, along all axes together."""
        return prod(axis.interleaved for axis in self.axes)

    def adding(self, sums: int, times: float) -> float:
        """To add to so many sums in memory, so many times."""
        return times * sums / self.machine.lanes * (TRANSFORMING if self.is_near(sums) else TRANSFORMING_FAR)

    def is_near(self, elements: int) -> bool:
        """Whether so many elements fit the L2 cache, of which today's cores have twice what the machine promises."""
        return F32_BYTES * elements <= 2 * self.machine.l2
