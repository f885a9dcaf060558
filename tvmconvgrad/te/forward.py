"""ConvTransposeBackpropData: the gradient of a transposed convolution with respect to its input.

    X[n, x, o] = sum over k, c of  Y[n, x * stride - pads_begin + k * dilation, c] * W[k, c, o]

which is the forward convolution of Y, the gradient of ConvTranspose's output, with the same filter.
"""

from __future__ import annotations

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Sum


def forward(problem: Problem, multiples: Multiples) -> Sum:
    """The forward convolution of `problem`; output positions along the last axis are rounded up, too."""
    geometry = problem.geometry
    rank = geometry.rank
    c_group, o_group = tensors.group_sizes(geometry)
    y, w = tensors.placeholders(problem)

    positions = [*geometry.x[:-1], tensors.ceil_to(geometry.x[-1], multiples.position)]
    windows, strides = tensors.swept(geometry, positions)
    y_extended = tensors.extended_data(y, problem, "y_extended", c_group, windows, (multiples.groups, multiples.c))
    w_extended = tensors.extended_filter(w, problem, "w_extended", tensors.whole(geometry.k), multiples)

    *k, c = tensors.reduce_axes((*geometry.k, y_extended.shape[2]), (*tensors.spatial_names("k", rank), "c"))

    def element(n: Index, g: Index, *rest: Index) -> Index:
        *x, o = rest
        meets = [i * s + j * d for i, s, j, d in zip(x, strides, k, geometry.dilations)]
        return tensors.dot(y_extended(n, g, c, *meets), w_extended(g, *k, c, o), (*k, c))

    groups, o_extent = y_extended.shape[1], w_extended.shape[-1]
    total = te.compute((geometry.batch, groups, *positions, o_extent), element, name="sum")

    def cropped(*index: Index) -> Index:
        n, channel, x = tensors.split_data_index(problem.data_format, index)
        g, o = tensors.in_group(channel, o_group, geometry.groups)
        return total(n, g, *x, o).astype(tensors.result_dtype(problem))

    result = te.compute(problem.output_shape, cropped, name="result")
    return Sum((y, w, result), ("y_extended", "w_extended"), ("sum",), "result")
