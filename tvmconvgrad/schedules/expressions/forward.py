"""A forward convolution's expression: the sum of te/forward.py, with its operands and its result."""

from __future__ import annotations

from tvmconvgrad.schedules.expressions.access_maps import im2col, map_accesses
from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import forward as mathematics
from tvmconvgrad.te import tensors
from tvmconvgrad.te.operands import PaddedData, padded_filter
from tvmconvgrad.te.tensors import Expression
from tvmconvgrad.te.zeros import of_positions, with_zeros


def forward(problem: Problem, blocking: Blocking) -> Expression:
    """The forward convolution of `problem`."""
    x, w = tensors.placeholders(problem)
    positions, extents = blocking.positions(problem), blocking.operand_extents(problem)
    accesses = map_accesses(problem.geometry, positions, blocking.implicit_axes)
    views = [access.view for access in accesses]
    x_padded = PaddedData(problem, "x", x, extents[:2], views, blocking.dtype).stage("x_padded")
    w_padded = padded_filter(problem, w, extents, "w_padded", blocking.dtype)
    total = mathematics.forward(problem, im2col(x_padded, accesses), w_padded, positions)
    result = total
    if not blocking.in_place:
        kept = blocking.positions(problem, blocking.result_position)
        shape = *total.shape[:2], *kept, total.shape[-1]
        result = tensors.converted(total, shape, tensors.result_dtype(problem), "result")
    found = Expression((x, w), (result,), ("x_padded", "w_padded"), ("sum",), views)
    has_gaps = any(axis.has_gaps for axis in of_positions(problem.geometry))
    return with_zeros(problem, found, [mathematics.output_map(problem, tensors.extents_of(result))], has_gaps)
