"""ConvTransposeBackpropData: the gradient of a transposed convolution with respect to its input.

    X[n, x, o] = sum over k, c of  Y[n, x * stride - pads_begin + k * dilation, c] * W[k, c, o]

which is the forward convolution of Y, the gradient of ConvTranspose's output, with the same filter.
"""

from __future__ import annotations

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Place, Sum
from tvmconvgrad.te.windows import swept, whole
from tvmconvgrad.te.zeros import of_positions, with_zeros


def forward(problem: Problem, multiples: Multiples) -> Sum:
    """The forward convolution of `problem`; output positions along the last axis are rounded up, too."""
    geometry = problem.geometry
    rank = geometry.rank
    c_group, o_group = tensors.group_sizes(geometry)
    y, w = tensors.placeholders(problem)

    positions = positions_of(problem, multiples)
    sweeps = swept(geometry, positions, multiples.bare_axes)
    windows = [sweep.window for sweep in sweeps]
    y_extended = tensors.extended_data(y, problem, "y", "y_extended", c_group, windows, multiples, multiples.c)
    w_extended = tensors.extended_filter(w, problem, "w_extended", whole(geometry.k), multiples)

    *k, c = tensors.reduce_axes((*geometry.k, y_extended.shape[2]), (*tensors.spatial_names("k", rank), "c"))

    def element(n: Index, g: Index, *rest: Index) -> Index:
        *x, o = rest
        meets = [sweep.meets(i, j) for sweep, i, j in zip(sweeps, x, k)]
        return tensors.dot(y_extended(n, g, c, *meets), w_extended(g, *k, c, o), (*k, c), multiples)

    groups, o_extent = y_extended.shape[1], w_extended.shape[-1]
    total = te.compute((geometry.batch, groups, *positions, o_extent), element, name="sum")
    result, kept = total, list(geometry.x) if multiples.aside else positions
    if not multiples.direct:
        shape = *total.shape[:2], *kept, total.shape[-1]
        result = tensors.converted(total, shape, tensors.result_dtype(problem), "result")

    axes = of_positions(geometry)

    def place(n: Index, g: Index, *rest: Index) -> Place:
        *x, o = rest
        inside = [condition for axis, at in zip(axes, x) for condition in axis.conditions(at)]
        inside += tensors.within(x[-1], geometry.x[-1], kept[-1])
        inside += tensors.within(g, geometry.groups, int(groups)) + tensors.within(o, o_group, int(o_extent))
        return Place(inside, list(tensors.data_index(problem, "x", n, g * o_group + o, x)))

    found = Sum((y, w), (result,), ("y_extended", "w_extended"), ("sum",), windows)
    return with_zeros(problem, found, [place], any(axis.has_gaps for axis in axes))


def positions_of(problem: Problem, multiples: Multiples) -> list[int]:
    """How many positions the sum has along each axis."""
    *outer, last = problem.geometry.x
    return [*outer, tensors.ceil_to(last, multiples.position)]
