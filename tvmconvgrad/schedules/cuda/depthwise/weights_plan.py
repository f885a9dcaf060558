"""The numbers of depthwise weights gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvmconvgrad.schedules.cuda.depthwise.plan import (
    MOST_PRODUCTS,
    MOST_REGISTERS,
    DepthwisePlan,
    DepthwisePlanner,
)
from tvmconvgrad.schedules.cuda.hardware import LINE_BYTES, REGISTERS
from tvmconvgrad.schedules.cuda.writing import THREADS
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES

SUMS, MOST_SUMS = 54, 98
"""Chosen, not measured: the most sums of a thread by default, with two words of groups, and with fewer. They bound the
registers of a thread: 54 are two groups of 27 taps, and 98 are two of 49."""
CACHE_BLOCK = LINE_BYTES
"""The most bytes of neighbouring groups that a block has: a cache line. With more, fewer threads would share groups,
and more partial sums would be left to add up."""
RUN, ROWS = 2, 4
"""Chosen, not measured: by default the positions of a thread along the last axis, at most, and along the one before, at
least, if so many divide it. More positions share more of what they read of x, and need more registers."""


@dataclass(frozen=True)
class Sharing:
    """How the threads of a weights gradient's block share groups."""

    vectors: int
    """The number of vectors of groups."""
    group_blocks: int
    """The number of blocks of neighbouring vectors; a thread block has one of them."""

    @classmethod
    def of(cls, problem: Problem, lanes: int) -> Sharing:
        """Of threads with so many groups each."""
        vectors = problem.geometry.groups // lanes
        return cls(vectors, -(-vectors * lanes * ITEM_BYTES[problem.dtype] // CACHE_BLOCK))

    @property
    def width(self) -> int:
        """The vectors of one such block, which neighbouring threads read along memory."""
        return -(-self.vectors // self.group_blocks)

    @property
    def parts(self) -> int:
        """Threads of a block that share a vector."""
        return THREADS // self.width

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.width * self.parts


@dataclass(frozen=True)
class FilterPlanner(DepthwisePlanner):
    """By default a thread has two words of groups, if the sums of all taps then fit."""

    @property
    def taps(self) -> int:
        """All taps."""
        return prod(self.problem.geometry.k)

    def plan(self, decisions: Decisions) -> DepthwisePlan:
        """The numbers of the program, drawn. Where tiles are left over, products have to be left out: so rows divide
        the positions, if they may."""
        y = self.problem.geometry.y
        widths = [width for width in self.widths if self._fits(width, 1, 1)] or [1]
        lanes = decisions.draw("lanes", widths, self._best_lanes(widths))
        whole, rows = self._whole(lanes), 1
        runs = [run for run in (1, 2, 4, 7, 8) if run <= y[-1] and self._fits(lanes, run, 1)] or [1]
        run = decisions.draw("run", runs, max(run for run in runs if run <= (RUN if whole else 2 * RUN)))
        if whole and self.axis > 0:
            sizes = [size for size in (1, 2, 4, 7, 8) if size <= y[-2] and self._fits(lanes, run, size)] or [1]
            divisors = [size for size in sizes if size >= ROWS and y[-2] % size == 0]
            rows = decisions.draw("rows", sizes, max(divisors or [size for size in sizes if size <= ROWS]))
        plan = DepthwisePlan(lanes, self.tile(run, rows), self.axis, whole)
        occupancy = max(int(REGISTERS / (THREADS * self._needed(lanes, run, rows))), 1)
        return replace(plan, blocks=self._blocks(decisions, plan, occupancy))

    def _whole(self, lanes: int) -> bool:
        """Whether a thread has the sums of all taps."""
        return lanes * self.taps <= MOST_SUMS

    def _needed(self, lanes: int, run: int, rows: int) -> float:
        """Registers of a thread: for its sums, and the rows of x and y that it multiplies, or that come meanwhile."""
        geometry = self.problem.geometry
        at_hand = geometry.k[-2] + geometry.strides[-2] if rows > 1 else 1
        vectors = ((run - 1) * geometry.strides[-1] + geometry.k[-1]) * at_hand + run * min(rows, 3)
        return self.registers(lanes, self.taps if self._whole(lanes) else geometry.k[-1], vectors)

    def _fits(self, lanes: int, run: int, rows: int) -> bool:
        products = run * rows * (self.taps if self._whole(lanes) else self.problem.geometry.k[-1])
        return products <= MOST_PRODUCTS and self._needed(lanes, run, rows) <= MOST_REGISTERS

    def _best_lanes(self, widths: list[int]) -> int:
        """Two words of groups, or one, if the sums of all taps fit; else two, for those along the last axis."""
        for words, most in ((2, SUMS), (1, MOST_SUMS)):
            fitting = [width for width in widths if self.words(width) <= words and width * self.taps <= most]
            if fitting and self.words(fitting[-1]) > words / 2:
                return fitting[-1]
        return max(width for width in widths if width == 1 or self.words(width) <= 2)

    def _blocks(self, decisions: Decisions, plan: DepthwisePlan, occupancy: int) -> int:
        """Splits of all positions: as many as there are blocks at a time, of which an SM runs `occupancy`."""
        geometry, sharing = self.problem.geometry, Sharing.of(self.problem, plan.lanes)
        most = max(geometry.batch * prod(plan.tiles(geometry.y)) // sharing.parts, 1)
        waves = [max(self.machine.sms * count // sharing.group_blocks, 1) for count in (1, 2, 3, 4, 6, 8)]
        few = [1 << i for i in range(self.machine.sms.bit_length())]
        options = [count for count in (*few, *waves) if count <= most]
        wanted = max(self.machine.sms * occupancy // sharing.group_blocks, 1)
        return decisions.draw("blocks", options, min(wanted, most))
