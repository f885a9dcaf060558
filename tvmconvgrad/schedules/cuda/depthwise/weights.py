"""The kernel of depthwise weights gradients: see schedules/cuda/depthwise/rule.py."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.depthwise.operands import SPACE, Lanes, ReadSet, loads_ahead, multiply_add
from tvmconvgrad.schedules.cuda.depthwise.plan import DepthwisePlan
from tvmconvgrad.schedules.cuda.depthwise.weights_plan import Sharing
from tvmconvgrad.schedules.cuda.hardware import WORD
from tvmconvgrad.schedules.cuda.ptx import instructions
from tvmconvgrad.schedules.cuda.results import Results
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import ACCUMULATOR, Index

SHARED = 48 << 10
"""Bytes of shared memory for sums that threads add up together."""


@dataclass(frozen=True)
class FilterKernel:
    """The kernel that sums: threads of a block share vectors of groups, and each block has a split of K, the
    positions."""

    results: Results
    x: Lanes
    y: Lanes
    plan: DepthwisePlan

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return self.x.total.shape[1:-2]

    @property
    def own_taps(self) -> tuple[int, ...]:
        """The taps of one thread along each axis: all, or those along the last axis."""
        return self.taps if self.plan.whole else (*(1 for _ in self.taps[:-1]), self.taps[-1])

    @property
    def tap_blocks(self) -> tuple[int, ...]:
        """Along each axis, the number of blocks that the taps are distributed over."""
        return tuple(all_taps // own for all_taps, own in zip(self.taps, self.own_taps))

    @property
    def sharing(self) -> Sharing:
        """How the threads of a block share groups."""
        return Sharing.of(self.results.product.problem, self.plan.lanes)

    @property
    def extents(self) -> tuple[int, ...]:
        """Positions along each axis."""
        return self.x.total.extents[len(self.x.total.variables) + 1 :]

    @property
    def work(self) -> tuple[int, ...]:
        """Tiles of positions: (n, *y)."""
        images = self.x.total.extents[len(self.x.total.variables)]
        return images, *self.plan.tiles(self.extents)

    @cached_property
    def partial(self) -> tirx.Buffer:
        """The partial sums of each split of K: (split, group, tap, 1)."""
        shape = (self.plan.blocks, self.x.total.shape[0], prod(self.taps), 1)
        return writing.memory("sum_partial", shape, ACCUMULATOR, "global")

    def kernel(self) -> tirx.Stmt:
        """The kernel. Neighbouring tiles are those of neighbouring threads, which share their borders in the cache."""
        sharing = self.sharing
        grid = (self.plan.blocks, prod(self.tap_blocks), sharing.group_blocks)
        steps = -(-prod(self.work) // (self.plan.blocks * sharing.parts))

        def body(block: Index, thread: Index) -> tirx.Stmt:
            split, tap_block, group_block = writing.unflatten(block, grid)
            mine, vector = thread // sharing.width, group_block * sharing.width + thread % sharing.width
            first_tap = [at * own for at, own in zip(writing.unflatten(tap_block, self.tap_blocks), self.own_taps)]
            sums = writing.memory("sums", (prod(self.own_taps) * self.plan.lanes,), ACCUMULATOR, "local")

            def step(at: Index) -> tirx.Stmt:
                tile = (split * steps + at) * sharing.parts + mine
                inside = writing.below(tile, prod(self.work), self.plan.blocks * steps * sharing.parts)
                return writing.when(inside, self._tile(sums, vector * self.plan.lanes, first_tap, tile))

            return writing.seq(
                writing.allocate(sums),
                writing.clear(sums),
                writing.when(self._is_vector(vector), writing.loop("step", steps, step)),
                *self._add_up(sums, split, thread, group_block * sharing.width, first_tap),
            )

        return writing.kernel(prod(grid), sharing.threads, body)

    def _is_vector(self, vector: Index) -> list[Index]:
        """The condition for a vector to exist, where not all blocks of groups are full."""
        return writing.below(vector, self.sharing.vectors, self.sharing.group_blocks * self.sharing.width)

    def _tile(self, sums: tirx.Buffer, group: Index, first_tap: Sequence[Index], tile: Index) -> tirx.Stmt:
        """Add the products of a tile, row by row of what its positions read."""
        n, *at = writing.unflatten(tile, self.work)
        positions = [[n, *position] for position in self.plan.positions(at)]
        taps = list(itertools.product(*map(range, self.own_taps)))
        indices = [[group, *(first + at for first, at in zip(first_tap, tap)), number(0), number(0)] for tap in taps]
        reads = {
            (i, tap): self.x.where(index, position)
            for i, position in enumerate(positions)
            for tap, index in enumerate(indices)
        }
        read_set = ReadSet.of(reads, range(SPACE, SPACE + len(self.taps)))
        read, elements = self.x.raw("read_set", len(read_set.first)), self.y.raw("y_elements", len(positions))
        loads, work = read_set.empty(), read_set.empty()
        for place, (key, row) in enumerate(zip(read_set.first, read_set.rows)):
            loads[row].append(self.x.load_vector_inside(reads[key], read, place * self.plan.lanes))
        for i, position in enumerate(positions):
            rows = [read_set.rows[read_set.places[i, tap]] for tap in range(len(taps))]
            inside = self.plan.inside(position[1:], self.extents, self.work[1:])
            load = self.y.load_vector(self.y.where(indices[0], position), elements, i * self.plan.lanes, inside)
            loads[min(rows)].append(load)
            for tap, row in enumerate(rows):
                factors = (read, read_set.places[i, tap]), (elements, i)
                work[row].append(writing.when(inside, multiply_add(sums, tap, factors, self.plan.lanes)))
        registers = writing.seq(writing.allocate(read, elements), writing.clear(read), writing.clear(elements))
        return writing.seq(registers, *loads_ahead(loads, work))

    def _add_up(
        self, sums: tirx.Buffer, split: Index, thread: Index, first_vector: Index, first_tap: Sequence[Index]
    ) -> list[tirx.Stmt]:
        """Add up the sums of the threads that share groups, in a fixed order, and write them, some taps at a time."""
        lanes, own = self.plan.lanes, prod(self.own_taps)
        width, threads = self.sharing.width, self.sharing.threads
        together = min(max(SHARED // (threads * lanes * WORD), 1), own)
        words = writing.memory("words", (self.sharing.parts, together, width * lanes), ACCUMULATOR, "shared.dyn")
        total = writing.memory("total", (lanes,), ACCUMULATOR, "local")

        def some(begin: int) -> tirx.Stmt:
            taps = min(together, own - begin)
            count = taps * width

            def keep(tap: Index) -> tirx.Stmt:
                def lane(i: Index) -> tirx.Stmt:
                    at = thread % width * lanes + i
                    return writing.store(words, writing.load(sums, (begin + tap) * lanes + i), thread // width, tap, at)

                return writing.vectorized("lane", lanes, lane)

            def add(step: Index) -> tirx.Stmt:
                flat = step * threads + thread
                tap, vector = flat // width, flat % width
                inside = writing.below(flat, count, -(-count // threads) * threads)
                inside += self._is_vector(first_vector + vector)
                where = self._flat_tap(first_tap, begin + tap)
                return writing.when(inside, self._total(words, total, split, first_vector, tap, vector, where))

            return writing.seq(
                instructions.barrier() if begin else None,
                writing.unrolled("tap", taps, keep),
                instructions.barrier(),
                writing.loop("step", -(-count // threads), add),
            )

        return [writing.allocate(words, total), *map(some, range(0, own, together))]

    def _flat_tap(self, first_tap: Sequence[Index], own: Index) -> Index:
        """The number of a thread's tap among all."""
        index = [first + mine for first, mine in zip(first_tap, writing.unflatten(own, self.own_taps))]
        pairs = zip(index, self.taps)
        return functools.reduce(lambda flat, pair: flat * pair[1] + pair[0], pairs, number(0))

    def _total(
        self,
        words: tirx.Buffer,
        total: tirx.Buffer,
        split: Index,
        first_vector: Index,
        tap: Index,
        vector: Index,
        flat_tap: Index,
    ) -> tirx.Stmt:
        """Add up a vector's sums of a tap, and write them."""
        lanes = self.plan.lanes

        def add(other: Index) -> tirx.Stmt:
            def lane(i: Index) -> tirx.Stmt:
                value = writing.load(words, other, tap, vector * lanes + i)
                return writing.store(total, writing.load(total, i) + value, i)

            return writing.vectorized("lane", lanes, lane)

        def write(i: Index) -> tirx.Stmt:
            group = (first_vector + vector) * lanes + i
            return writing.store(self.partial, writing.load(total, i), split, group, flat_tap, 0)

        return writing.seq(
            writing.clear(total),
            writing.loop("other", self.sharing.parts, add, together=8),
            writing.unrolled("lane", lanes, write),
        )
