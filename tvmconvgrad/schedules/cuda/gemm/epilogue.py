"""The epilogue: a block's sums go from shared memory to the user's tensor, or to partial sums, which are then added up.

A warp writes along memory in every layout. If channels are innermost and come in whole vectors, a thread writes 16
bytes; otherwise neighbouring threads write neighbouring elements. Sums are rounded here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm.operands import vector_lanes
from tvmconvgrad.schedules.cuda.gemm.product import Product
from tvmconvgrad.schedules.cuda.ptx import clusters, instructions
from tvmconvgrad.schedules.cuda.stages import Stage
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Sum, filter_gradient, tensors
from tvmconvgrad.te.tensors import ACCUMULATOR, Index, OutputMap

THREADS = 256
WARP = 32
PARTS = 32
"""At most so many warps share the splits of the same vectors, so that each has few loads one after the other."""
PARTIAL_LANES = 4


def result(problem: Problem) -> tirx.Buffer:
    """The user's tensor for the result."""
    shape = [writing.number(extent) for extent in problem.output_shape]
    return tirx.decl_buffer(shape, tensors.result_dtype(problem), "out")


def output_maps(problem: Problem, expression: Sum, found: Mapping[str, Stage]) -> list[Callable[..., OutputMap]]:
    """For each sum, the map from its elements to the user's tensor; `found` are the expression's stages."""
    if problem.gradient is Gradient.FILTER:
        return [filter_gradient.output_map(problem, found[total].shape) for total in expression.sums]
    return list(expression.output_maps[len(expression.zeros) :])


@dataclass(frozen=True)
class Results:
    """The elements of a product in the user's tensor `out`."""

    product: Product
    out: tirx.Buffer
    output_map: Callable[..., OutputMap]
    """The map from an element of the sum to the user's tensor."""

    @property
    def by_columns(self) -> bool:
        """Whether N, and not M, is contiguous in the user's tensor."""
        problem = self.product.problem
        last = problem.filter_axes[-1] if self.product.is_filter else problem.data_format[-1]
        return last == ("O" if self.product.is_filter else "C")

    @property
    def lanes(self) -> int:
        """The number of columns that one store writes."""
        problem = self.product.problem
        c_group, o_group = tensors.group_sizes(problem.geometry)
        channels = c_group if problem.gradient is Gradient.DATA else o_group
        wanted = vector_lanes(problem)
        return wanted if self.by_columns and channels % wanted == 0 else 1

    def write(self, group: Index, row: Index, column: Index, value: Callable[[Index], Index], lanes: int) -> tirx.Stmt:
        """Write `lanes` columns of a row; `value` gives each as f32."""
        return self.write_at(self.product.index(group, row, column), value, lanes)

    def write_at(self, index: Sequence[Index], value: Callable[[Index], Index], lanes: int) -> tirx.Stmt:
        """Write `lanes` contiguous elements from the sum's element `index` on; `value` gives each as f32."""
        at = self.output_map(*index)
        *outer, last = at.index
        registers = writing.memory("rounded", (lanes,), str(self.out.dtype), "local")

        def rounded(lane: Index) -> tirx.Stmt:
            return writing.store(registers, value(lane).astype(str(self.out.dtype)), lane)

        def whole(lane: Index) -> tirx.Stmt:
            return writing.store(self.out, writing.load(registers, lane), *outer, last + lane)

        statement = writing.seq(
            writing.allocate(registers),
            writing.unrolled("lane", lanes, rounded),
            writing.vectorized("lane", lanes, whole),
        )
        return writing.when(at.inside, statement)


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


def sum_split_k(results: Results, partial: tirx.Buffer) -> tirx.Stmt:
    """The kernel that adds up the splits and writes the result.

    The threads of a warp have neighbouring vectors. Each warp of a block adds up some of the splits, and the first warp
    then adds up their sums, always in the same order.
    """
    product, split_k = results.product, int(partial.shape[0])
    lanes = PARTIAL_LANES if results.lanes % PARTIAL_LANES == 0 else 1
    shape = (product.groups, product.m, product.n // lanes)
    parts = min(PARTS, 1 << (split_k - 1).bit_length())
    blocks = -(-prod(shape) // WARP)

    def body(block: Index, thread: Index) -> tirx.Stmt:
        part, vector, flat = thread // WARP, thread % WARP, block * WARP + thread % WARP
        inside = writing.below(flat, prod(shape), blocks * WARP)
        group, row, at = writing.unflatten(flat, shape)
        total = writing.memory("total", (lanes,), ACCUMULATOR, "local")
        sums = writing.memory("sums", (parts, WARP, lanes), ACCUMULATOR, "shared.dyn")

        def add(step: Index) -> tirx.Stmt:
            split = step * parts + part
            steps = -(-split_k // parts)

            def lane(i: Index) -> tirx.Stmt:
                term = writing.load(partial, split, group, row, at * lanes + i)
                return writing.store(total, writing.load(total, i) + term, i)

            return writing.when(writing.below(split, split_k, steps * parts), writing.vectorized("lane", lanes, lane))

        def keep(i: Index) -> tirx.Stmt:
            return writing.store(sums, writing.load(total, i), part, vector, i)

        def add_part(other: Index) -> tirx.Stmt:
            def lane(i: Index) -> tirx.Stmt:
                return writing.store(total, writing.load(total, i) + writing.load(sums, other + 1, vector, i), i)

            return writing.vectorized("lane", lanes, lane)

        write = results.write(group, row, at * lanes, lambda i: writing.load(total, i), lanes)
        return writing.seq(
            writing.allocate(total, sums),
            writing.clear(total),
            writing.when(inside, writing.loop("step", -(-split_k // parts), add, together=8)),
            writing.vectorized("lane", lanes, keep),
            instructions.barrier(),
            writing.when(
                [part < 1, *inside],
                writing.seq(writing.unrolled("other", parts - 1, add_part) if parts > 1 else None, write),
            ),
        )

    return writing.kernel(blocks, parts * WARP, body)


def zero(out: tirx.Buffer, lanes: int) -> tirx.Stmt | None:
    """The kernel that fills a tensor with zeros."""
    shape = [int(extent) for extent in out.shape]
    width = lanes if shape[-1] % lanes == 0 else 1

    def element(flat: Index) -> tirx.Stmt:
        *outer, vector = writing.unflatten(flat, [*shape[:-1], shape[-1] // width])
        nothing = tirx.const(0, str(out.dtype))
        return writing.vectorized("lane", width, lambda i: writing.store(out, nothing, *outer, vector * width + i))

    return writing.elementwise(prod(shape) // width, THREADS, element)
