"""The result: the user's tensor, how sums are written to it, and the kernels that add up splits or fill it with zeros.

Sums are rounded where they are written, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.expression_stages import Stage
from tvmconvgrad.schedules.cuda.hardware import WARP
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.ptx import instructions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression, filter_gradient, tensors
from tvmconvgrad.te.tensors import ACCUMULATOR, Index, OutputMap

PARTS = 32
"""At most so many warps share the splits of the same vectors, so that each has few loads one after the other."""
PARTIAL_LANES = 4
"""Partial sums that a thread loads or stores by one instruction: 16 bytes of f32."""


def result(problem: Problem) -> tirx.Buffer:
    """The user's tensor for the result."""
    shape = [writing.number(extent) for extent in problem.output_shape]
    return tirx.decl_buffer(shape, tensors.result_dtype(problem), "out")


def output_maps(problem: Problem, expression: Expression, found: Mapping[str, Stage]) -> list[Callable[..., OutputMap]]:
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

    return writing.elementwise(prod(shape) // width, element)
