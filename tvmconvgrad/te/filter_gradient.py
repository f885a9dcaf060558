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
from tvmconvgrad.spec.layouts import make_shape
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, OutputMap, Sum
from tvmconvgrad.te.views import PaddedView, map_accesses, whole
from tvmconvgrad.te.zeros import Reads, of_taps, with_zeros


def filter_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The filter gradient of `problem`; channels, groups and positions are rounded up to `multiples`.

    With `multiples.image_halves` each half of an image counts as an image. dw stays the same, since it is the sum over
    all images.
    """
    geometry = problem.geometry
    rank = geometry.rank
    c_group, o_group = tensors.group_sizes(geometry)
    first, second = tensors.placeholders(problem)
    x, y = (second, first) if problem.transposed else (first, second)

    image_halves = multiples.image_halves
    positions = (*geometry.y[:-1], tensors.ceil_to(geometry.y[-1], multiples.position))
    rows = -(-positions[0] // image_halves)
    apart = positions[0] - rows
    accesses = map_accesses(geometry, positions, multiples.implicit_axes)
    x_views = [access.view for access in accesses]
    y_views = [PaddedView(size, extent) for size, extent in zip(geometry.y, positions)]
    phases = accesses[-1].stride if multiples.phases else 1
    c_block, o_block = map(max, zip(multiples.blocks, (multiples.c, multiples.o)))
    x_padded = tensors.padded_data(
        x, problem, "x", "x_padded", c_group, x_views, multiples, c_block, phases, apart * accesses[0].stride
    )
    y_padded = tensors.padded_data(
        y, problem, "y", "y_padded", o_group, y_views, multiples, o_block, apart=apart, halves=apart < rows
    )

    extents = (geometry.batch * image_halves, rows, *positions[1:])
    n, *at = tensors.reduce_axes(extents, ("n", *tensors.spatial_names("y", rank)))

    def element(g: Index, *rest: Index) -> Index:
        *k, c, o = rest
        reads = [access.reads(i, j) for access, i, j in zip(accesses, at, k)]
        if phases > 1:
            ahead = k[-1] * accesses[-1].dilation
            reads[-1:] = [ahead % phases, at[-1] + ahead // phases]
        return tensors.dot(x_padded(n, g, c, *reads), y_padded(n, g, o, *at), (n, *at), multiples)

    groups = x_padded.shape[1]
    c_extent, o_extent = tensors.ceil_to(c_group, multiples.c), tensors.ceil_to(o_group, multiples.o)
    total = te.compute((groups, *geometry.k, c_extent, o_extent), element, name="sum")
    operands = ("x_padded", "y_padded")
    # A row that is padding for one half may be data of the other, so the first axis has no padding to leave out.
    views = x_views if image_halves == 1 else [*whole([int(x_padded.shape[3])]), *x_views[1:]]
    taps = of_taps(geometry)
    has_gaps = any(axis.has_gaps for axis in taps)
    if multiples.direct:
        found = Sum((first, second), (total,), operands, ("sum",), views)
        return with_zeros(problem, found, [output_map_of_sum(problem, multiples)], has_gaps)
    shape = make_shape(problem.filter_axes, {"C": c_group, "O": geometry.o}, geometry.k)
    result = te.compute(shape, lambda *i: _read(problem, total, i).astype(tensors.result_dtype(problem)), name="result")
    found = Sum((first, second), (result,), operands, ("sum",), views)
    if problem.crop is None and not has_gaps and not problem.flips_filter:
        return found

    def moved(*index: Index) -> OutputMap:
        space, c, o = tensors.filter_parts(problem, index)
        return OutputMap(_met(taps, space), list(tensors.filter_index(problem, space, c, o)))

    return with_zeros(problem, found, [moved], has_gaps)


def output_map_of_sum(problem: Problem, multiples: Multiples) -> Callable[..., OutputMap]:
    """The map from an element (g, *k, c, o) of the sum to the user's filter. Elements of surplus channels, and of taps
    that read nothing but padding, have no element there."""
    geometry = problem.geometry
    c_group, o_group = tensors.group_sizes(geometry)
    taps = of_taps(geometry)

    def output_map(g: Index, *rest: Index) -> OutputMap:
        *k, c, o = rest
        inside = _met(taps, k)
        inside += tensors.within(g, geometry.groups, tensors.ceil_to(geometry.groups, multiples.groups))
        inside += tensors.within(c, c_group, tensors.ceil_to(c_group, multiples.c))
        inside += tensors.within(o, o_group, tensors.ceil_to(o_group, multiples.o))
        return OutputMap(inside, list(tensors.filter_index(problem, k, c, g * o_group + o)))

    return output_map


def _met(taps: Sequence[Reads], k: Sequence[Index]) -> list[Index]:
    return [condition for axis, tap in zip(taps, k) for condition in axis.conditions(tap)]


def _read(problem: Problem, total: te.Tensor, index: tuple[Index, ...]) -> Index:
    """The element of the sum that belongs at the user's `index` of the filter."""
    space, c, o = tensors.filter_parts(problem, index)
    _, o_group = tensors.group_sizes(problem.geometry)
    g, o = tensors.in_group(o, o_group, problem.geometry.groups)
    return total(g, *space, c, o)
