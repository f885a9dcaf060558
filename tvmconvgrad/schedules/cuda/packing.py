"""Operands in vectors of 16 bytes, and the kernel that packs them so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.hardware import VECTOR_BYTES
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.tensors import Index


def vector_lanes(problem: Problem) -> int:
    """Elements of a vector of the problem's type."""
    return VECTOR_BYTES // ITEM_BYTES[problem.dtype]


def pack(
    packed: tirx.Buffer,
    shape: Sequence[int],
    lanes: int,
    place: Callable[[Sequence[Index], Index], list[Index]],
    value: Callable[[list[Index]], Index],
) -> tirx.Stmt | None:
    """The kernel that fills `packed`, with a thread for each vector of `lanes` elements; None where there is none.

    `shape` has the vectors along each axis; neighbouring threads have neighbours along the last one. `place` gives the
    index in `packed` of a vector's lane from the vector's index, and `value` what belongs there.
    """

    def vector(flat: Index) -> tirx.Stmt:
        at = writing.unflatten(flat, shape)
        registers = writing.memory("vector", (lanes,), str(packed.dtype), "local")

        def lane(i: Index) -> tirx.Stmt:
            return writing.store(registers, value(place(at, i)).astype(str(packed.dtype)), i)

        def whole(i: Index) -> tirx.Stmt:
            return writing.store(packed, writing.load(registers, i), *place(at, i))

        return writing.seq(
            writing.allocate(registers),
            writing.unrolled("lane", lanes, lane),
            writing.vectorized("lane", lanes, whole),
        )

    return writing.elementwise(prod(shape), vector)
