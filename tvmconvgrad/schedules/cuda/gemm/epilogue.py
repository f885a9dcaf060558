"""The epilogue: a block's sums go from shared memory to the user's tensor, or to partial sums, which are then added up.

A warp writes along memory in every layout. If channels are innermost and come in whole vectors, a thread writes 16
bytes; otherwise neighbouring threads write neighbouring elements. Sums are rounded here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.ptx import clusters
from tvmconvgrad.schedules.cuda.results import PARTIAL_LANES, Results
from tvmconvgrad.te.tensors import ACCUMULATOR, Index


@dataclass(frozen=True)
class SumTile:
    """The sums of a block's tile in shared memory, in f32 or already rounded; rows are `stride` elements apart."""

    words: tirx.Buffer
    stride: int
    rows: int
    columns: int
    first: tuple[Index, Index, Index]
    """The group, row and column at which the tile begins."""
    cluster: Cluster
    """The block's cluster, whose other blocks may have other splits of the tile."""

    def at(self, row: Index, column: Index) -> tuple[Index, Index, Index]:
        """The group, row and column of an element."""
        group, first_row, first_column = self.first
        return group, first_row + row, first_column + column

    def load(self, row: Index, column: Index) -> Index:
        """An element."""
        return writing.load(self.words, row * self.stride + column)

    def total(self, row: Index, column: Index, lanes: int) -> tuple[tirx.Stmt | None, Callable[[Index], Index]]:
        """`lanes` neighbouring elements, added up over the cluster's splits: the statement that adds them up, if any,
        and a function that gives each."""
        if self.cluster.split_k == 1:
            return None, lambda lane: self.load(row, column + lane)
        width = PARTIAL_LANES if lanes % PARTIAL_LANES == 0 and self.stride % PARTIAL_LANES == 0 else 1
        total = writing.memory("total", (lanes,), ACCUMULATOR, "local")
        term = writing.memory("term", (width,), ACCUMULATOR, "local")

        def add(begin: int, split: int) -> tirx.Stmt:
            source = writing.address(self.words, width, row * self.stride + column + begin)
            load = clusters.load_shared(writing.address(term, width, 0), source, self.cluster.of_split(split), width)

            def lane(i: Index) -> tirx.Stmt:
                return writing.store(total, writing.load(total, begin + i) + writing.load(term, i), begin + i)

            return writing.seq(load, writing.unrolled("lane", width, lane))

        adds = (add(begin, split) for split in range(self.cluster.split_k) for begin in range(0, lanes, width))
        before = writing.seq(writing.allocate(total, term), writing.clear(total), *adds)
        return before, lambda lane: writing.load(total, lane)


def write_tile(results: Results, tile: SumTile, thread: Index, threads: int) -> tirx.Stmt:
    """Write a block's tile to the result; with in-cluster split-K, the block's share of the tile."""
    lanes, product, split_k = results.lanes, results.product, tile.cluster.split_k
    count = tile.rows * tile.columns // lanes
    steps = -(-count // (threads * split_k))

    def element(step: Index) -> tirx.Stmt:
        flat = (step * split_k + tile.cluster.split) * threads + thread
        if results.by_columns:
            row, column = flat // (tile.columns // lanes), flat % (tile.columns // lanes) * lanes
        else:
            row, column = flat % tile.rows, flat // tile.rows
        group, at_row, at_column = tile.at(row, column)
        before, value = tile.total(row, column, lanes)
        statement = writing.seq(before, results.write(group, at_row, at_column, value, lanes))
        inside = writing.below(flat, count, steps * threads * split_k)
        return writing.when([*inside, at_row < product.m, at_column < product.n], statement)

    return writing.loop("step", steps, element)


def write_partial(
    product: Product, partial: tirx.Buffer, split: Index, tile: SumTile, thread: Index, threads: int
) -> tirx.Stmt:
    """Write a block's tile to the partial sums of its split, in f32; with in-cluster split-K, the block's share."""
    vectors, split_k = tile.columns // PARTIAL_LANES, tile.cluster.split_k
    steps = -(-tile.rows * vectors // (threads * split_k))

    def element(step: Index) -> tirx.Stmt:
        flat = (step * split_k + tile.cluster.split) * threads + thread
        row, column = flat // vectors, flat % vectors * PARTIAL_LANES
        group, at_row, at_column = tile.at(row, column)

        before, value = tile.total(row, column, PARTIAL_LANES)

        def lane(i: Index) -> tirx.Stmt:
            return writing.store(partial, value(i), split, group, at_row, at_column + i)

        statement = writing.seq(before, writing.vectorized("lane", PARTIAL_LANES, lane))
        inside = writing.below(flat, tile.rows * vectors, steps * threads * split_k)
        return writing.when([*inside, at_row < product.m, at_column < product.n], statement)

    return writing.loop("step", steps, element)
