"""The numbers of schedules/cuda/depthwise.py, by a small model of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.schedules.cuda.machine import LAUNCH, Machine
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import parts

REGISTERS = 96
"""Sums that a thread has at most."""
MOST_TAPS = 32
"""Taps along the run at most: windows are in registers."""
THREADS = 256
BLOCKS = 3
"""Blocks that a multiprocessor has at a time, as a thread of them has many registers."""


@dataclass(frozen=True)
class Plan:
    """All numbers of a program."""

    lanes: int
    """Neighbouring groups of a thread."""
    run: int
    """Neighbouring positions of a thread."""
    axis: int
    """Along which spatial axis the run goes."""
    blocks: int
    """Parts of all positions, each a block's, of filter gradients."""


@dataclass(frozen=True)
class Planner:
    """Chooses the numbers of a problem's program."""

    machine: Machine
    problem: Problem

    @property
    def is_filter(self) -> bool:
        """Whether the filter's gradient is asked for."""
        return self.problem.gradient is Gradient.FILTER

    @property
    def axis(self) -> int:
        """The axis of the run: the last, unless neighbouring threads have that."""
        last = self.problem.geometry.rank - 1
        return last if self.problem.data_format == "NXC" or self.is_filter else max(last - 1, 0)

    @property
    def has_runs(self) -> bool:
        """Whether runs are longer than one position: not where threads have the only axis."""
        return self.problem.data_format == "NXC" or self.is_filter or self.problem.geometry.rank > 1

    def cost(self) -> float | None:
        """Microseconds, about: what memory takes. None for what the rule does not take."""
        geometry = self.problem.geometry
        if not geometry.groups == geometry.c == geometry.o or geometry.k[self.axis] > MOST_TAPS:
            return None
        passes = 1.0
        if self.problem.gradient is Gradient.DATA:
            found = parts(self.problem, Multiples())
            if not found or any(by_x for part in found for by_x in part.over_x):
                return None
        elif self.is_filter and self.problem.data_format == "NCX":
            passes = 3.0
        return 3 * LAUNCH + max(passes * self.problem.tensor_bytes / self.machine.bytes, self._computing())

    def _computing(self) -> float:
        """Microseconds of the products, most of which wait for data in the caches."""
        return self.problem.flops / (0.3 * self.machine.f32_flops)

    def plan(self, decisions: Decisions) -> Plan:
        """The numbers of the program, drawn."""
        geometry = self.problem.geometry
        in_vectors = self.problem.data_format == "NXC" or self.is_filter
        wanted = 8 if self.problem.dtype != "f32" and not self.is_filter else 4
        widths = [lanes for lanes in (1, 2, 4, 8) if geometry.groups % lanes == 0 and in_vectors] or [1]
        if self.is_filter:
            widths = [lanes for lanes in widths if lanes * geometry.k[-1] <= REGISTERS]
        lanes = decisions.draw("lanes", widths, max(width for width in widths if width <= wanted))
        size = geometry.x[self.axis] if self.problem.gradient is not Gradient.DATA else geometry.y[self.axis]
        runs = [run for run in (1, 2, 4, 8) if run <= max(size, 1) and run * lanes <= 64] if self.has_runs else [1]
        run = decisions.draw("run", runs, max(run for run in runs if run <= 4))
        return Plan(lanes, run, self.axis, self._blocks(decisions, lanes, run))

    def _blocks(self, decisions: Decisions, lanes: int, run: int) -> int:
        if not self.is_filter:
            return 1
        geometry = self.problem.geometry
        steps = geometry.batch * prod(geometry.x[:-1]) * -(-geometry.x[-1] // run)
        threads = steps * (geometry.groups // lanes)
        most = max(threads // (8 * THREADS), 1)
        few = [1 << i for i in range(self.machine.processors.bit_length())]
        turns = [self.machine.processors * together for together in (1, 2, 3, 4, 6, 8)]  # of so many blocks on each SM
        options = [count for count in (*few, *turns) if count <= most]
        return decisions.draw("blocks", options, max(count for count in options if count <= turns[BLOCKS - 1]))
