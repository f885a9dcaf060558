"""The kernel of depthwise filter gradients: see schedules/cuda/depthwise.py."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import instructions, writing
from tvmconvgrad.schedules.cuda.depthwise_plan import REGISTERS, THREADS, Plan
from tvmconvgrad.schedules.cuda.lanes import Lanes, Window, with_axis
from tvmconvgrad.schedules.cuda.storing import WARP, Results
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import ACCUMULATOR, Index

SPACE = 3
"""The first spatial axis of a stage of data."""


@dataclass(frozen=True)
class FilterKernel:
    """The sum's kernel: blocks of threads that share vectors of groups, each with a part of the positions."""

    results: Results
    y: Lanes
    x: Lanes
    plan: Plan

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return self.y.total.shape[1:-2]

    @property
    def own_taps(self) -> tuple[int, ...]:
        """Those of one thread: all, or those along the last axis."""
        fits = prod(self.taps) * self.plan.lanes <= REGISTERS
        return self.taps if fits else (*(1 for _ in self.taps[:-1]), self.taps[-1])

    @property
    def tap_blocks(self) -> tuple[int, ...]:
        """How many blocks of threads share the taps of each axis."""
        return tuple(all_taps // own for all_taps, own in zip(self.taps, self.own_taps))

    @property
    def vectors(self) -> int:
        """Vectors of groups."""
        return self.y.total.shape[0] // self.plan.lanes

    @property
    def width(self) -> int:
        """Vectors of a block, a power of two: so many that a warp reads whole lines, and few threads have none."""
        return min((WARP, WARP // 2, WARP // 4), key=lambda width: -(-self.vectors // width) * width)

    @property
    def parts(self) -> int:
        """Threads of a block that share a vector."""
        return THREADS // self.width

    @property
    def work(self) -> tuple[int, ...]:
        """Runs of positions: (n, *x, with the last by runs)."""
        n, *x, last = self.y.total.extents[len(self.y.total.variables) :]
        return n, *x, -(-last // self.plan.run)

    @cached_property
    def partial(self) -> tirx.Buffer:
        """The sums of each block's part of the positions."""
        shape = (self.plan.blocks, self.y.total.shape[0], prod(self.taps), 1)
        return writing.memory("sum_partial", shape, ACCUMULATOR, "global")

    def kernel(self) -> tirx.Stmt:
        """The kernel."""
        grid = (self.plan.blocks, prod(self.tap_blocks), -(-self.vectors // self.width))

        def body(block: Index, thread: Index) -> tirx.Stmt:
            part, tap_block, vectors = writing.unflatten(block, grid)
            vector = vectors * self.width + thread % self.width
            group = vector * self.plan.lanes
            inside = writing.below(vector, self.vectors, grid[2] * self.width)
            first_tap = [at * own for at, own in zip(writing.unflatten(tap_block, self.tap_blocks), self.own_taps)]
            lanes, own = self.plan.lanes, prod(self.own_taps)
            sums = writing.memory("sums", (own * lanes,), ACCUMULATOR, "local")
            steps = -(-prod(self.work) // (self.plan.blocks * self.parts))
            begin = (part * self.parts + thread // self.width) * steps

            def step(at: Index) -> tirx.Stmt:
                run = begin + at
                return writing.when([run < prod(self.work)], self._run(sums, group, first_tap, run))

            return writing.seq(
                writing.allocate(sums),
                writing.clear(sums),
                writing.when(inside, writing.loop("step", steps, step)),
                *self._add_up(sums, part, thread, group, first_tap, inside),
            )

        return writing.kernel(prod(grid), THREADS, body)

    def _run(self, sums: tirx.Buffer, group: Index, first_tap: Sequence[Index], run: Index) -> tirx.Stmt:
        """Add the products of a run of positions."""
        n, *x, last = writing.unflatten(run, self.work)
        lanes, length = self.plan.lanes, self.plan.run
        positions = [[n, *x, last * length + i] for i in range(length)]
        zero = number(0)
        taps = list(itertools.product(*(range(own) for own in self.own_taps)))
        rows = sorted({tap[:-1] for tap in taps})
        elements = writing.memory("x_elements", (length * lanes,), ACCUMULATOR, "local")
        index = [group, *first_tap, zero, zero]
        reads: list[tirx.Stmt] = []
        extent = self.y.total.extents[-1]
        for i, position in enumerate(positions):
            inside = [position[-1] < extent] if extent % length else []
            reads += self.x.read(self.x.where(index, position), elements, i * lanes, inside)
        added = [self._row(sums, elements, index, row, positions) for row in rows]
        return writing.seq(writing.allocate(elements), *reads, *(each for row in added for each in row))

    def _row(
        self,
        sums: tirx.Buffer,
        elements: tirx.Buffer,
        index: Sequence[Index],
        row: tuple[int, ...],
        positions: Sequence[Sequence[Index]],
    ) -> list[tirx.Stmt]:
        """Add the products of the taps along the last axis."""
        lanes, rank, last = self.plan.lanes, len(self.taps), self.own_taps[-1]
        met: dict[tuple[int, int], list[Index]] = {}
        for tap in range(last):
            at = [*index]
            for axis, own in enumerate((*row, tap)):
                at = with_axis(at, 1 + axis, at[1 + axis] + own)
            met |= {(i, tap): self.y.where(at, position) for i, position in enumerate(positions)}
        axis = SPACE + rank - 1
        window = Window.of({key: where[axis] for key, where in met.items()})
        read = writing.memory("window", (len(window.first) * lanes,), ACCUMULATOR, "local")
        statements = [writing.allocate(read)]
        for place, key in enumerate(window.first):
            inside = [met[key][axis] < self.y.stage.shape[axis]]
            statements += self.y.read(met[key], read, place * lanes, inside)
        number_of_row = _flat((*row, 0), self.own_taps)

        def product(i: int, tap: int, lane: Index) -> tirx.Stmt:
            at = (number_of_row + tap) * lanes + lane
            term = writing.load(read, window.places[i, tap] * lanes + lane) * writing.load(elements, i * lanes + lane)
            return writing.store(sums, writing.load(sums, at) + term, at)

        extent = self.y.total.extents[-1]
        for i, tap in itertools.product(range(len(positions)), range(last)):
            inside = [positions[i][-1] < extent] if extent % len(positions) else []
            added = writing.unrolled("lane", lanes, functools.partial(product, i, tap))
            statements.append(writing.when(inside, added))
        return statements

    def _add_up(
        self,
        sums: tirx.Buffer,
        part: Index,
        thread: Index,
        group: Index,
        first_tap: Sequence[Index],
        inside: Sequence[Index],
    ) -> list[tirx.Stmt]:
        """Add up the sums of the threads that share groups, tap by tap, in their order; and write them."""
        lanes, own = self.plan.lanes, prod(self.own_taps)
        words = writing.memory("words", (self.parts, self.width * lanes), ACCUMULATOR, "shared.dyn")
        total = writing.memory("total", (lanes,), ACCUMULATOR, "local")
        row, vector = thread // self.width, thread % self.width

        def tap(at: Index) -> tirx.Stmt:
            def keep(i: Index) -> tirx.Stmt:
                return writing.store(words, writing.load(sums, at * lanes + i), row, vector * lanes + i)

            def add(other: Index) -> tirx.Stmt:
                def lane(i: Index) -> tirx.Stmt:
                    value = writing.load(words, other, vector * lanes + i)
                    return writing.store(total, writing.load(total, i) + value, i)

                return writing.vectorized("lane", lanes, lane)

            tap_index = [first + mine for first, mine in zip(first_tap, writing.unflatten(at, self.own_taps))]
            flat = functools.reduce(
                lambda rest, axis: rest * self.taps[axis] + tap_index[axis], range(len(self.taps)), number(0)
            )

            def write(i: Index) -> tirx.Stmt:
                return writing.store(self.partial, writing.load(total, i), part, group + i, flat, 0)

            first = writing.seq(
                writing.clear(total),
                writing.loop("other", self.parts, add, together=8),
                writing.unrolled("lane", lanes, write),
            )
            return writing.seq(
                writing.vectorized("lane", lanes, keep),
                instructions.barrier(),
                writing.when([row < 1, *inside], first),
                instructions.barrier(),
            )

        return [writing.allocate(words, total), writing.unrolled("tap", own, tap)]


def _flat(index: Sequence[int], extents: Sequence[int]) -> int:
    """The number of an element among all, the last axis innermost."""
    return functools.reduce(lambda rest, pair: rest * pair[1] + pair[0], zip(index, extents), 0)
