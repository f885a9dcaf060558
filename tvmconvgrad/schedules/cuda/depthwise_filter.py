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
        """Add the products of a run of positions. Everything is loaded before: so all loads are under way at once."""
        n, *x, last = writing.unflatten(run, self.work)
        length, extent = self.plan.run, self.y.total.extents[-1]
        positions = [[n, *x, last * length + i] for i in range(length)]
        inside = [[position[-1] < extent] if extent % length else [] for position in positions]
        index = [group, *first_tap, number(0), number(0)]
        elements = self.x.raw("x_elements", length)
        loads = [
            self.x.fetch(self.x.where(index, position), elements, i * self.plan.lanes, inside[i])
            for i, position in enumerate(positions)
        ]
        rows = sorted({tap[:-1] for tap in itertools.product(*(range(own) for own in self.own_taps))})
        products: list[tirx.Stmt] = []
        buffers = [elements]
        for at, row in enumerate(rows):
            window, read, row_loads = self._window(index, row, at, positions)
            buffers.append(read)
            loads += row_loads
            products += self._products(sums, elements, read, window, _flat((*row, 0), self.own_taps), inside)
        return writing.seq(writing.allocate(*buffers), *map(writing.clear, buffers), *loads, *products)

    def _window(
        self, index: Sequence[Index], row: tuple[int, ...], number_of_row: int, positions: Sequence[Sequence[Index]]
    ) -> tuple[Window, tirx.Buffer, list[tirx.Stmt]]:
        """What a row of taps along the last axis meets, the registers for it, and its loads."""
        lanes, axis = self.plan.lanes, SPACE + len(self.taps) - 1
        met: dict[tuple[int, int], list[Index]] = {}
        for tap in range(self.own_taps[-1]):
            at = [*index]
            for place, own in enumerate((*row, tap)):
                at = with_axis(at, 1 + place, at[1 + place] + own)
            met |= {(i, tap): self.y.where(at, position) for i, position in enumerate(positions)}
        window = Window.of({key: where[axis] for key, where in met.items()})
        read = self.y.raw(f"window_{number_of_row}", len(window.first))
        extent = self.y.stage.shape[axis]
        loads = [
            self.y.fetch(met[key], read, place * lanes, [met[key][axis] < extent])
            for place, key in enumerate(window.first)
        ]
        return window, read, loads

    def _products(
        self,
        sums: tirx.Buffer,
        elements: tirx.Buffer,
        read: tirx.Buffer,
        window: Window,
        first_tap: int,
        inside: Sequence[Sequence[Index]],
    ) -> list[tirx.Stmt]:
        """Add the products of a row of taps, of which the first one has a number."""
        lanes = self.plan.lanes

        def product(i: int, tap: int, lane: Index) -> tirx.Stmt:
            at = (first_tap + tap) * lanes + lane
            factors = (read, window.places[i, tap]), (elements, i)
            y, x = (writing.load(buffer, place * lanes + lane).astype(ACCUMULATOR) for buffer, place in factors)
            return writing.store(sums, writing.load(sums, at) + y * x, at)

        return [
            writing.when(inside[i], writing.unrolled("lane", lanes, functools.partial(product, i, tap)))
            for i, tap in itertools.product(range(len(inside)), range(self.own_taps[-1]))
        ]

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
