"""ConvolutionBackpropFilters and ConvTransposeBackpropFilters: the gradient with respect to the filter.

    for n, p, k, c, o:
        dw[k, c, o] += x[n, p * stride - pads_begin + k * dilation, c] * dy[n, p, o]

x is the convolution's input and dy the gradient of its output. For ConvTranspose the two tensors change roles: its
input takes the place of dy, and the gradient of its output the place of x. The sum is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Im2col, Index, OutputMap, Stage
from tvmconvgrad.te.zeros import of_taps, read_by


def filter_gradient(problem: Problem, x: Im2col, dy: Stage, channels: tuple[int, int]) -> Stage:
    """The sum (g, *k, c, o) with so many `channels` c and o, over all images and positions that the stage `dy` has."""
    geometry = problem.geometry
    n, *p = tensors.reduce_axes((dy.shape[0], *dy.shape[3:]), ("n", *tensors.spatial_names("y", geometry.rank)))

    def element(g: Index, *rest: Index) -> Index:
        *k, c, o = rest
        return tensors.dot(x(n, g, c, p, k), dy(n, g, o, *p), (n, *p))

    return te.compute((dy.shape[1], *geometry.k, *channels), element, name="sum")


def output_map(problem: Problem, shape: Sequence[int]) -> Callable[..., OutputMap]:
    """The map from an element (g, *k, c, o) of a stage of this `shape` to the user's filter. Surplus elements, and
    those of taps that read nothing but padding, have none there."""
    geometry = problem.geometry
    c_group, o_group = tensors.group_sizes(geometry)
    taps = of_taps(geometry)

    def map_element(g: Index, *rest: Index) -> OutputMap:
        *k, c, o = rest
        extents = zip((g, c, o), (geometry.groups, c_group, o_group), (shape[0], *shape[-2:]))
        inside = read_by(taps, k) + [condition for each in extents for condition in tensors.within(*each)]
        return OutputMap(inside, list(tensors.filter_index(problem, k, c, g * o_group + o)))

    return map_element
