"""Results on their way to the user's tensor: from a block's tile in shared memory, or added up over splits.

A warp writes along memory, whatever the layout: vectors of 16 bytes where channels lie innermost and come in whole
vectors, else neighbouring elements by neighbouring threads. Sums are rounded here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.operands import vector_lanes
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Place

THREADS = 256
PARTIAL_LANES = 4


@dataclass(frozen=True)
class Results:
    """The elements of a product in the user's tensor `out`."""

    product: Product
    out: tirx.Buffer
    place: Callable[..., Place]
    """Where an element of the sum belongs."""

    @property
    def by_columns(self) -> bool:
        """Whether neighbouring columns are neighbours in memory, and not rows."""
        problem = self.product.problem
        last = problem.filter_axes[-1] if self.product.is_filter else problem.data_format[-1]
        return last == ("O" if self.product.is_filter else "C")

    @property
    def lanes(self) -> int:
        """How many columns one vector stores."""
        problem = self.product.problem
        c_group, o_group = tensors.group_sizes(problem.geometry)
        channels = c_group if problem.gradient is Gradient.DATA else o_group
        wanted = vector_lanes(problem)
        return wanted if self.by_columns and channels % wanted == 0 else 1

    def write(self, group: Index, row: Index, column: Index, value: Callable[[Index], Index], lanes: int) -> tirx.Stmt:
        """Write `lanes` columns of a row; `value` of each is f32."""
        place = self.place(*self.product.index(group, row, column))
        *outer, last = place.index
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
        return writing.when(place.inside, statement)


@dataclass(frozen=True)
class SumTile:
    """The sums of a block's tile in shared memory: rows lie `stride` words apart."""

    words: tirx.Buffer
    stride: int
    rows: int
    columns: int
    first: tuple[Index, Index, Index]
    """The group, row and column that it begins with."""

    def at(self, row: Index, column: Index) -> tuple[Index, Index, Index]:
        """The group, row and column of an element."""
        group, first_row, first_column = self.first
        return group, first_row + row, first_column + column

    def load(self, row: Index, column: Index) -> Index:
        """An element."""
        return writing.load(self.words, row * self.stride + column)


def write_tile(results: Results, tile: SumTile, thread: Index, threads: int) -> tirx.Stmt:
    """Write a block's tile to the result."""
    lanes, product = results.lanes, results.product

    def element(step: Index) -> tirx.Stmt:
        flat = step * threads + thread
        if results.by_columns:
            row, column = flat // (tile.columns // lanes), flat % (tile.columns // lanes) * lanes
        else:
            row, column = flat % tile.rows, flat // tile.rows
        group, at_row, at_column = tile.at(row, column)
        statement = results.write(group, at_row, at_column, lambda lane: tile.load(row, column + lane), lanes)
        return writing.when([at_row < product.rows, at_column < product.columns], statement)

    return writing.loop("step", tile.rows * tile.columns // lanes // threads, element)


def write_partial(
    product: Product, partial: tirx.Buffer, split: Index, tile: SumTile, thread: Index, threads: int
) -> tirx.Stmt:
    """Write a block's tile to the sums of a split, all f32."""
    vectors = tile.columns // PARTIAL_LANES

    def element(step: Index) -> tirx.Stmt:
        flat = step * threads + thread
        row, column = flat // vectors, flat % vectors * PARTIAL_LANES
        group, at_row, at_column = tile.at(row, column)

        def lane(i: Index) -> tirx.Stmt:
            return writing.store(partial, tile.load(row, column + i), split, group, at_row, at_column + i)

        statement = writing.vectorized("lane", PARTIAL_LANES, lane)
        return writing.when([at_row < product.rows, at_column < product.columns], statement)

    return writing.loop("step", tile.rows * vectors // threads, element)


def sum_splits(results: Results, partial: tirx.Buffer) -> tirx.Stmt | None:
    """The kernel that adds the splits up, in their order, and writes the result: a thread for some columns."""
    product = results.product
    lanes = PARTIAL_LANES if results.lanes % PARTIAL_LANES == 0 else 1
    shape = (product.groups, product.rows, product.columns // lanes)
    splits = int(partial.shape[0])

    def element(flat: Index) -> tirx.Stmt:
        group, row, vector = writing.unflatten(flat, shape)
        total = writing.memory("total", (lanes,), "float32", "local")

        def add(split: Index) -> tirx.Stmt:
            def lane(i: Index) -> tirx.Stmt:
                term = writing.load(partial, split, group, row, vector * lanes + i)
                return writing.store(total, writing.load(total, i) + term, i)

            return writing.vectorized("lane", lanes, lane)

        def clear(i: Index) -> tirx.Stmt:
            return writing.store(total, tirx.const(0, "float32"), i)

        return writing.seq(
            writing.allocate(total),
            writing.unrolled("lane", lanes, clear),
            writing.loop("split", splits, add),
            results.write(group, row, vector * lanes, lambda i: writing.load(total, i), lanes),
        )

    return writing.elementwise(prod(shape), THREADS, element)


def zero(out: tirx.Buffer, lanes: int) -> tirx.Stmt | None:
    """The kernel that fills a tensor with zeros."""
    shape = [int(extent) for extent in out.shape]
    width = lanes if shape[-1] % lanes == 0 else 1

    def element(flat: Index) -> tirx.Stmt:
        *outer, vector = writing.unflatten(flat, [*shape[:-1], shape[-1] // width])
        nothing = tirx.const(0, str(out.dtype))
        return writing.vectorized("lane", width, lambda i: writing.store(out, nothing, *outer, vector * width + i))

    return writing.elementwise(prod(shape) // width, THREADS, element)
