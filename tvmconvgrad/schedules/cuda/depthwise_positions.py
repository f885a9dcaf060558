"""The kernel of depthwise data gradients and forward convolutions: see schedules/cuda/depthwise.py."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.depthwise_plan import THREADS, Plan
from tvmconvgrad.schedules.cuda.lanes import Lanes, Window, with_axis
from tvmconvgrad.schedules.cuda.storing import Results
from tvmconvgrad.te.tensors import ACCUMULATOR, Index

SPACE = 3
"""The first spatial axis of a stage of data."""


@dataclass(frozen=True)
class PositionsKernel:
    """One sum's kernel."""

    results: Results
    data: Lanes
    filter: Lanes
    plan: Plan

    @property
    def _extents(self) -> tuple[int, ...]:
        """Work for threads: (n, vectors of groups, *positions by runs, channel)."""
        n, groups, *space, channels = self.data.total.shape
        space[self.plan.axis] = -(-space[self.plan.axis] // self.plan.run)
        return (n, groups // self.plan.lanes, *space, channels)

    def kernel(self) -> tirx.Stmt:
        """The kernel: a thread for each run and vector, neighbours along memory."""
        extents = self._extents
        rank = len(extents) - 3
        n, vectors, *space, channel = range(len(extents))
        by_groups = self.results.product.problem.data_format == "NXC"
        order = [n, channel, *space, vectors] if by_groups else [n, vectors, channel, *space]

        def run(flat: Index) -> tirx.Stmt:
            along = writing.unflatten(flat, [extents[axis] for axis in order])
            work = [along[order.index(axis)] for axis in range(rank + 3)]
            return self._run(work[0], work[1] * self.plan.lanes, work[2:-1], work[-1])

        kernel = writing.elementwise(prod(extents), THREADS, run)
        assert kernel is not None
        return kernel

    def _run(self, n: Index, group: Index, space: Sequence[Index], channel: Index) -> tirx.Stmt:
        """All sums of a thread."""
        plan, total = self.plan, self.data.total
        begin = space[plan.axis] * plan.run
        indices = [[n, group, *with_axis(space, plan.axis, begin + i), channel] for i in range(plan.run)]
        taps = total.extents[len(total.variables) :]
        tap_vars = [tirx.Var(f"tap_{i}", writing.INDEX) for i in range(len(taps))]
        summed = [with_axis(tap_vars, plan.axis, tap) for tap in range(taps[plan.axis])]
        met = {(i, j): self.data.where(at, tap) for i, at in enumerate(indices) for j, tap in enumerate(summed)}
        window = Window.of({key: where[SPACE + plan.axis] for key, where in met.items()})
        names = {"sums": plan.run, "window": len(window.first), "weights": 1}
        registers = [writing.memory(name, (size * plan.lanes,), ACCUMULATOR, "local") for name, size in names.items()]
        body = writing.seq(
            *self._read_window([met[key] for key in window.first], registers[1]),
            *(step for j, tap in enumerate(summed) for step in self._add(indices[0], tap, j, window, registers)),
        )
        for axis in reversed(range(len(taps))):
            body = body if axis == plan.axis else writing.loop_of(tap_vars[axis], taps[axis], body)
        writes = [self._write(at, i, registers[0]) for i, at in enumerate(indices)]
        return writing.seq(writing.allocate(*registers), writing.clear(registers[0]), body, *writes)

    def _read_window(self, places: Sequence[Sequence[Index]], window: tirx.Buffer) -> list[tirx.Stmt]:
        """Read the window's places: of the last run, some lie beyond what the stage has."""
        axis = SPACE + self.plan.axis
        extent = self.data.stage.shape[axis]
        reads = [
            self.data.read(where, window, i * self.plan.lanes, [where[axis] < extent]) for i, where in enumerate(places)
        ]
        return [statement for read in reads for statement in read]

    def _add(
        self, index: Sequence[Index], tap: Sequence[Index], j: int, window: Window, registers: Sequence[tirx.Buffer]
    ) -> list[tirx.Stmt]:
        """Add what a tap along the run contributes to all positions."""
        sums, elements, weights = registers
        lanes = self.plan.lanes

        def product(i: int, lane: Index) -> tirx.Stmt:
            at = i * lanes + lane
            element = writing.load(elements, window.places[i, j] * lanes + lane)
            return writing.store(sums, writing.load(sums, at) + element * writing.load(weights, lane), at)

        read = self.filter.read(self.filter.where(index, tap), weights, 0)
        products = [writing.unrolled("lane", lanes, functools.partial(product, i)) for i in range(self.plan.run)]
        return [*read, *products]

    def _write(self, index: Sequence[Index], i: int, sums: tirx.Buffer) -> tirx.Stmt:
        """Write a position's result, if there is such a position."""
        axis = self.plan.axis
        extent = self.data.total.shape[2 + axis]
        lanes = self.plan.lanes
        write = self.results.write_at(index, lambda lane: writing.load(sums, i * lanes + lane), lanes)
        beyond = extent % self.plan.run
        return writing.when([index[2 + axis] < extent] if beyond else [], write)
