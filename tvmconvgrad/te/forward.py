"""ConvTransposeBackpropData: the gradient of a transposed convolution with respect to its input.

    for n, p, k, c, o:
        y[n, p, o] += x[n, p * stride - pads_begin + k * dilation, c] * w[k, c, o]

This is the forward convolution of x, the gradient of ConvTranspose's output, with the same filter.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, OutputMap, Sum
from tvmconvgrad.te.views import map_accesses, whole
from tvmconvgrad.te.zeros import of_positions, with_zeros


def forward(problem: Problem, multiples: Multiples) -> Sum:
    """The forward convolution of `problem`; output positions along the last axis are also rounded up."""
    geometry = problem.geometry
    rank = geometry.rank
    c_group, o_group = tensors.group_sizes(geometry)
    x, w = tensors.placeholders(problem)

    positions = positions_of(problem, multiples)
    accesses = map_accesses(geometry, positions, multiples.implicit_axes)
    views = [access.view for access in accesses]
    x_padded = tensors.padded_data(x, problem, "x", "x_padded", c_group, views, multiples, multiples.c)
    w_padded = tensors.padded_filter(w, problem, "w_padded", whole(geometry.k), multiples)

    *k, c = tensors.reduce_axes((*geometry.k, x_padded.shape[2]), (*tensors.spatial_names("k", rank), "c"))

    def element(n: Index, g: Index, *rest: Index) -> Index:
        *y, o = rest
        reads = [access.reads(i, j) for access, i, j in zip(accesses, y, k)]
        return tensors.dot(x_padded(n, g, c, *reads), w_padded(g, *k, c, o), (*k, c), multiples)

    groups, o_extent = x_padded.shape[1], w_padded.shape[-1]
    total = te.compute((geometry.batch, groups, *positions, o_extent), element, name="sum")
    result, kept = total, positions_of(problem, replace(multiples, position=multiples.aside or multiples.position))
    if not multiples.direct:
        shape = *total.shape[:2], *kept, total.shape[-1]
        result = tensors.converted(total, shape, tensors.result_dtype(problem), "result")

    axes = of_positions(geometry)

    def output_map(n: Index, g: Index, *rest: Index) -> OutputMap:
        *y, o = rest
        inside = [condition for axis, at in zip(axes, y) for condition in axis.conditions(at)]
        inside += tensors.within(y[-1], geometry.y[-1], kept[-1])
        inside += tensors.within(g, geometry.groups, int(groups)) + tensors.within(o, o_group, int(o_extent))
        return OutputMap(inside, list(tensors.data_index(problem, "y", n, g * o_group + o, y)))

    found = Sum((x, w), (result,), ("x_padded", "w_padded"), ("sum",), views)
    return with_zeros(problem, found, [output_map], any(axis.has_gaps for axis in axes))


def positions_of(problem: Problem, multiples: Multiples) -> list[int]:
    """How many positions the sum has along each axis."""
    *outer, last = problem.geometry.y
    return [*outer, tensors.ceil_to(last, multiples.position)]
