"""The bias gradient: the sum of output_delta over images and positions.

    for n, p, o:
        db[o] += dy[n, p, o]

It reads the user's whole tensor: padding and cropping mean nothing to it. For ConvTranspose dy has the place of x.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Expression, Index

SUM = "bias_sum"
"""The name of the block that adds up, in f32; its axes are the channel, then those that are summed, in memory's order.
"""


def with_bias(problem: Problem, found: Expression) -> Expression:
    """`found` with the bias gradient, if the problem asks for it."""
    if not problem.epilogue.bias_delta:
        return found
    delta = found.inputs[problem.delta_input]
    channel = len(delta.shape) - 1 if problem.data_format == "NXC" else 1
    extents = [int(extent) for axis, extent in enumerate(delta.shape) if axis != channel]
    axes = tensors.reduce_axes(extents, ["bias_n", *(f"bias_{axis}" for axis in range(1, len(extents)))])

    def element(o: Index) -> Index:
        index = [*axes[:channel], o, *axes[channel:]]
        return te.sum(delta(*index).astype(tensors.ACCUMULATOR), axis=axes)

    total = te.compute(problem.bias_shape, element, name=SUM)
    result = tensors.converted(total, problem.bias_shape, tensors.result_dtype(problem), "bias_delta")
    return replace(found, bias=(result,))
