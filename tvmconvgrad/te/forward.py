"""The forward convolution, and ConvTransposeBackpropData: the gradient of a transposed convolution with respect to
its input.

    for n, p, k, c, o:
        y[n, p, o] += x[n, p * stride - pads_begin + k * dilation, c] * w[k, c, o]

n is the image, p a position of y and k a tap of the filter, each with an index for every spatial axis; c and o are
channels of x and of y. With groups, each group has such a sum of its own.

For ConvTransposeBackpropData, x is the gradient of ConvTranspose's output, and y that of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Im2col, Index, OutputMap, Stage
from tvmconvgrad.te.zeros import of_positions, read_by


def forward(problem: Problem, x: Im2col, w: Stage, positions: Sequence[int]) -> Stage:
    """The sum (n, g, *p, o) at so many `positions` along each axis, over all channels c that the stage `w` has."""
    geometry = problem.geometry
    *k, c = tensors.reduce_axes((*geometry.k, w.shape[-2]), (*tensors.spatial_names("k", geometry.rank), "c"))

    def element(n: Index, g: Index, *rest: Index) -> Index:
        *p, o = rest
        return tensors.dot(x(n, g, c, p, k), w(g, *k, c, o), (*k, c))

    return te.compute((geometry.batch, w.shape[0], *positions, w.shape[-1]), element, name="sum")


def output_map(problem: Problem, shape: Sequence[int]) -> Callable[..., OutputMap]:
    """The map from an element (n, g, *p, o) of a stage of this `shape` to the user's tensor. Surplus elements, and
    those that read nothing but padding, have none there."""
    geometry = problem.geometry
    _, o_group = tensors.group_sizes(geometry)
    axes = of_positions(geometry)

    def map_element(n: Index, g: Index, *rest: Index) -> OutputMap:
        *p, o = rest
        extents = zip((*p, g, o), (*geometry.y, geometry.groups, o_group), (*shape[2:-1], shape[1], shape[-1]))
        inside = read_by(axes, p) + [condition for each in extents for condition in tensors.within(*each)]
        return OutputMap(inside, list(tensors.data_index(problem, "y", n, g * o_group + o, p)))

    return map_element
