"""The numbers of depthwise data gradients and forward convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.schedules.cuda.depthwise.plan import (
    MOST_PRODUCTS,
    MOST_REGISTERS,
    DepthwisePlan,
    DepthwisePlanner,
)
from tvmconvgrad.schedules.cuda.writing import THREADS
from tvmconvgrad.schedules.decisions import Decisions

WHOLE = 128
"""Chosen, not measured: all taps are unrolled if a position has at most so many products, over all output phases. With
more, programs get long; with fewer, more layers have loops over taps, whose rows are loaded again for each."""
POSITIONS, RESULTS = 16, 28
"""Chosen, not measured: by default a thread has at most so many positions, and so many results for each of its groups.
More positions share more of what they read, and leave room for fewer threads on an SM."""
RUNS = 4, 7, 2, 1
"""Lengths of a run by default, the best first; 7 if it leaves fewer surplus positions, as in images of 7 and 14."""
ROWS_AT_HAND = 3
"""The rows of data that a thread has in registers, about: the one that is multiplied, and those in flight."""


@dataclass(frozen=True)
class PositionsPlanner(DepthwisePlanner):
    """By default a thread has a word (4 bytes) of groups, so that a warp reads whole cache lines."""

    @property
    def space(self) -> tuple[int, ...]:
        """The positions along each axis, of the output phase that has most."""
        if not self.phases:
            return self.problem.geometry.y
        return tuple(max(extents) for extents in zip(*(phase.positions for phase in self.phases)))

    @property
    def results(self) -> int:
        """Results for each position: one for each output phase."""
        return sum(phase.channels for phase in self.phases) or 1

    @property
    def products(self) -> int:
        """Products for each position."""
        return sum(phase.channels * phase.taps for phase in self.phases) or prod(self.problem.geometry.k)

    @property
    def whole(self) -> bool:
        """Whether all taps are unrolled."""
        return self.products <= WHOLE and self.results <= RESULTS

    @property
    def together(self) -> int:
        """Results for each position that a thread computes at a time."""
        return self.results if self.whole else 1

    def plan(self, decisions: Decisions) -> DepthwisePlan:
        """The numbers of the program, drawn."""
        narrow = [width for width in self.widths if width == 1 or self.words(width) <= 1]
        lanes = decisions.draw("lanes", [width for width in self.widths if self._fits(width, 1, 1)], narrow[-1])
        best_run, best_rows = self._best(lanes)
        run, rows = 1, 1
        if self._has_runs:
            sizes = [size for size in (1, 2, 4, 7, 8) if size <= self.space[self.axis] and self._fits(lanes, size, 1)]
            run = decisions.draw("run", sizes, best_run)
        if self._has_rows:
            above = self.space[self.axis - 1]
            sizes = [size for size in (1, 2, 4, 8) if size <= above and self._fits(lanes, run, size)]
            rows = decisions.draw("rows", sizes, best_rows)
        return DepthwisePlan(lanes, self.tile(run, rows), self.axis, self.whole)

    @property
    def _has_runs(self) -> bool:
        """Whether a thread has runs: not if neighbouring threads lie along the only axis."""
        return self.in_vectors or self.problem.geometry.rank > 1

    @property
    def _has_rows(self) -> bool:
        return self.whole and self.axis > 0

    def _fits(self, lanes: int, run: int, rows: int) -> bool:
        """Whether a thread has enough registers for its sums, the weights, and some rows of data."""
        geometry = self.problem.geometry
        if self.whole and run * rows * self.products > MOST_PRODUCTS:
            return False
        taps = max((phase.phase_groups[self.axis].taps for phase in self.phases), default=geometry.k[self.axis])
        step = 1 if self.phases else geometry.strides[self.axis]
        weights = self.products if self.whole else geometry.k[self.axis]
        vectors = weights + ROWS_AT_HAND * ((run - 1) * step + taps)
        return self.registers(lanes, self.together * run * rows, vectors) <= MOST_REGISTERS

    def _best(self, lanes: int) -> tuple[int, int]:
        """The run and the rows of a thread: as many results as it may have, if there are still threads for all SMs."""
        geometry, space = self.problem.geometry, self.space
        if not self._has_runs:
            return 1, 1
        sizes = [size for size in RUNS if size <= max(space[self.axis], 1) and size * self.together <= RESULTS]
        run = min(sizes[:2], key=lambda size: -(-space[self.axis] // size) * size)
        rows = max(size for size in (1, 2, 4) if size == 1 or (self._has_rows and self._may_have(size, run)))
        threads = geometry.batch * (geometry.groups // lanes) * prod(space)
        while run * rows > 1 and threads < run * rows * self.machine.sms * THREADS:
            run, rows = (run, rows // 2) if rows > 1 else (run // 2, rows)
        return run, rows

    def _may_have(self, rows: int, run: int) -> bool:
        positions = rows * run
        enough = positions <= POSITIONS and positions * self.together <= RESULTS
        return enough and positions * self.products <= MOST_PRODUCTS and rows <= self.space[self.axis - 1]
