"""ConvolutionBackpropFilters and ConvTransposeBackpropFilters: the gradient with respect to the filter.

    W[k, c, o] = sum over n, x of  Y[n, x * stride - pads_begin + k * dilation, c] * X[n, x, o]

Y is the convolution's big side (its input), X the small side (the gradient of its output). For ConvTranspose the same
two tensors meet with their roles exchanged: its input is X, the gradient of its output is Y. The sum is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.layouts import make_shape
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Place, Sum
from tvmconvgrad.te.windows import Window, swept, whole
from tvmconvgrad.te.zeros import Meeting, of_taps, with_zeros


def filter_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The filter gradient of `problem`, its channels, groups and positions rounded up to `multiples`.

    What is a band of an image is summed as an image: W stays the same, since the sum is over all of them.
    """
    geometry = problem.geometry
    rank = geometry.rank
    c_group, o_group = tensors.group_sizes(geometry)
    first, second = tensors.placeholders(problem)
    y, x = (second, first) if problem.transposed else (first, second)

    bands = multiples.bands
    positions = (*geometry.x[:-1], tensors.ceil_to(geometry.x[-1], multiples.position))
    rows = -(-positions[0] // bands)
    apart = positions[0] - rows
    sweeps = swept(geometry, positions, multiples.bare_axes)
    y_windows = [sweep.window for sweep in sweeps]
    x_windows = [Window(size, extent) for size, extent in zip(geometry.x, positions)]
    residues = sweeps[-1].stride if multiples.residues else 1
    c_block, o_block = map(max, zip(multiples.blocks, (multiples.c, multiples.o)))
    y_extended = tensors.extended_data(
        y, problem, "y", "y_extended", c_group, y_windows, multiples, c_block, residues, apart * sweeps[0].stride
    )
    x_extended = tensors.extended_data(
        x, problem, "x", "x_extended", o_group, x_windows, multiples, o_block, apart=apart, halves=apart < rows
    )

    extents = (geometry.batch * bands, rows, *positions[1:])
    n, *at = tensors.reduce_axes(extents, ("n", *tensors.spatial_names("x", rank)))

    def element(g: Index, *rest: Index) -> Index:
        *k, c, o = rest
        meets = [sweep.meets(i, j) for sweep, i, j in zip(sweeps, at, k)]
        if residues > 1:
            ahead = k[-1] * sweeps[-1].dilation
            meets[-1:] = [ahead % residues, at[-1] + ahead // residues]
        return tensors.dot(y_extended(n, g, c, *meets), x_extended(n, g, o, *at), (n, *at), multiples)

    groups = y_extended.shape[1]
    c_extent, o_extent = tensors.ceil_to(c_group, multiples.c), tensors.ceil_to(o_group, multiples.o)
    total = te.compute((groups, *geometry.k, c_extent, o_extent), element, name="sum")
    operands = ("y_extended", "x_extended")
    # What is a pad for one band is data for the next.
    windows = y_windows if bands == 1 else [*whole([int(y_extended.shape[3])]), *y_windows[1:]]
    taps = of_taps(geometry)
    has_gaps = any(axis.has_gaps for axis in taps)
    if multiples.direct:
        found = Sum((first, second), (total,), operands, ("sum",), windows)
        return with_zeros(problem, found, [place_of_sum(problem, multiples)], has_gaps)
    shape = make_shape(problem.filter_axes, {"C": c_group, "O": geometry.o}, geometry.k)
    result = te.compute(shape, lambda *i: _read(problem, total, i).astype(tensors.result_dtype(problem)), name="result")
    found = Sum((first, second), (result,), operands, ("sum",), windows)
    if problem.crop is None and not has_gaps:
        return found

    def moved(*index: Index) -> Place:
        space, c, o = tensors.filter_parts(problem, index)
        return Place(_met(taps, space), list(tensors.filter_index(problem, space, c, o)))

    return with_zeros(problem, found, [moved], has_gaps)


def place_of_sum(problem: Problem, multiples: Multiples) -> Callable[..., Place]:
    """Where an element (g, *k, c, o) of the sum belongs in the user's filter: none of a surplus channel does, and none
    of a tap that meets nothing."""
    geometry = problem.geometry
    c_group, o_group = tensors.group_sizes(geometry)
    taps = of_taps(geometry)

    def place(g: Index, *rest: Index) -> Place:
        *k, c, o = rest
        inside = _met(taps, k)
        inside += tensors.within(g, geometry.groups, tensors.ceil_to(geometry.groups, multiples.groups))
        inside += tensors.within(c, c_group, tensors.ceil_to(c_group, multiples.c))
        inside += tensors.within(o, o_group, tensors.ceil_to(o_group, multiples.o))
        return Place(inside, list(tensors.filter_index(problem, k, c, g * o_group + o)))

    return place


def _met(taps: Sequence[Meeting], k: Sequence[Index]) -> list[Index]:
    return [condition for axis, tap in zip(taps, k) for condition in axis.conditions(tap)]


def _read(problem: Problem, total: te.Tensor, index: tuple[Index, ...]) -> Index:
    """The sum that belongs at the user's `index` of the filter."""
    space, c, o = tensors.filter_parts(problem, index)
    _, o_group = tensors.group_sizes(problem.geometry)
    g, o = tensors.in_group(o, o_group, problem.geometry.groups)
    return total(g, *space, c, o)
