"""A weights gradient by tiles of dy."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.operands import PaddedData
from tvmconvgrad.te.tensors import Expression, Index, OutputMap
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.winograd import transforms
from tvmconvgrad.te.winograd.axes import TiledAxis
from tvmconvgrad.te.winograd.cook_toom import cook_toom
from tvmconvgrad.te.winograd.transforms import Element


def tiled_filter_gradient(
    problem: Problem, channels: tuple[int, int], axes: Sequence[TiledAxis], is_copied: bool
) -> Expression:
    """The weights gradient of `problem`, by tiles of dy; operands have so many `channels` (c, o), of which those that
    the problem does not have are zero.

    If it `is_copied`, the result is a copy of a stage "untiled" (*k, c, o), which has whole vectors of channels.
    """
    geometry = problem.geometry
    first, second = tensors.placeholders(problem)
    x, y = (second, first) if problem.transposed else (first, second)
    x_views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(geometry.x, axes, geometry.pads_begin)]
    y_views = [PaddedView(size, axis.covered) for size, axis in zip(geometry.y, axes)]
    x_data = PaddedData(problem, "x", x, (1, channels[0]), x_views).stage("x_data")
    y_data = PaddedData(problem, "y", y, (1, channels[1]), y_views).stage("y_data")
    matrices = [cook_toom(axis.taps, axis.tile, divides_results=True) for axis in axes if axis.tiled]
    tiled_x = transforms.tiled("tiled_x", x_data, axes, [each.elements for each in matrices])
    tiled_y = transforms.tiled("tiled_y", y_data, axes, [each.taps for each in matrices])
    total = _summed_positions(tiled_x, tiled_y, axes)
    of_tile = transforms.transformed(
        "untiled", [each.results for each in matrices], total.shape[len(matrices) :], total
    )
    dtype = tensors.result_dtype(problem)

    def untiled(*index: Index) -> Index:
        *k, c, o = index
        tiled, direct = ([i for i, axis in zip(k, axes) if axis.tiled == wanted] for wanted in (True, False))
        return of_tile(*tiled, *direct, c, o)

    element: Element = untiled
    if is_copied:
        element = te.compute((*geometry.k, *total.shape[-2:]), untiled, name="untiled")

    def stored(*index: Index) -> Index:
        k, c, o = tensors.filter_parts(problem, index)
        return element(*k, c, o).astype(dtype)

    result = te.compute(problem.output_shape, stored, name="result")

    def flipped(*index: Index) -> OutputMap:
        return OutputMap([], list(tensors.filter_index(problem, *tensors.filter_parts(problem, index))))

    output_maps = (flipped,) if problem.flips_filter else ()
    found = Expression((first, second), (result,), ("x_data", "y_data"), ("sum",), output_maps=output_maps)
    return with_bias(problem, found)


def _summed_positions(x: te.Tensor, y: te.Tensor, axes: Sequence[TiledAxis]) -> te.Tensor:
    """(*f, *taps of other axes, c, o): product f, summed over images and tiles."""
    products = [axis.products for axis in axes if axis.tiled]
    many, direct = len(products), [axis for axis in axes if not axis.tiled]
    extents = [int(y.shape[many]), *(axis.tiles for axis in axes)]
    n, *tiles = tensors.reduce_axes(extents, ["n", *tensors.spatial_names("t", len(axes))])

    def element(*index: Index) -> Index:
        f, k, (c, o) = index[:many], iter(index[many:-2]), index[-2:]
        at = [t if axis.tiled else t + next(k) * axis.dilation for axis, t in zip(axes, tiles)]
        return te.sum(x(*f, n, *at, c) * y(*f, n, *tiles, o), axis=[n, *tiles])

    shape = (*products, *(axis.taps for axis in direct), x.shape[-1], y.shape[-1])
    return te.compute(shape, element, name="sum")
