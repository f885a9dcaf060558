"""A data gradient or a forward convolution by tiles of its result."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.operands import PaddedData, padded_filter
from tvmconvgrad.te.tensors import Index, OutputMap, Sum
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.winograd import transforms
from tvmconvgrad.te.winograd.axes import Axis
from tvmconvgrad.te.winograd.cook_toom import cook_toom
from tvmconvgrad.te.zeros import with_zeros


def tiled_positions(problem: Problem, channels: tuple[int, int], axes: Sequence[Axis], is_copied: bool) -> Sum:
    """A data gradient or a forward convolution of `problem`; operands have so many `channels` (c, o), of which those
    that the problem does not have are zero.

    If it `is_copied`, the result is a copy of a stage "untiled"; in NCX its rows then have the user's length.
    """
    geometry, is_data = problem.geometry, problem.gradient is Gradient.DATA
    first, second = tensors.placeholders(problem)
    summed, columns = (channels[1], geometry.c) if is_data else (channels[0], geometry.o)
    reaches = [(axis.taps - 1) * axis.dilation for axis in axes]
    pads = [reach - pad if is_data else pad for reach, pad in zip(reaches, geometry.pads_begin)]
    sizes = geometry.y if is_data else geometry.x
    views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(sizes, axes, pads)]
    data = PaddedData(problem, "y" if is_data else "x", first, (1, summed), views).stage("data")
    weights = padded_filter(problem, second, (1, *channels), "filter")

    def tap(*index: Index) -> Index:
        *at, s, j = index
        k = [axis.taps - 1 - i for axis, i in zip(axes, at)] if is_data else at
        return weights(0, *k, *((j, s) if is_data else (s, j)))

    matrices = [cook_toom(axis.tile, axis.taps) for axis in axes if axis.tiled]
    tiled_data = transforms.tiled("tiled_data", data, axes, [each.elements for each in matrices])
    s_and_j = channels[::-1] if is_data else channels
    tiled_filter = transforms.tiled_filter(tap, axes, s_and_j, [each.taps for each in matrices])
    total = _summed_channels(tiled_data, tiled_filter, axes)
    rows = [axis.covered for axis in axes]
    kept_order = total.shape[len(matrices) :]
    of_tile = transforms.transformed("untiled", [each.results for each in matrices], kept_order, total)

    def untiled(n: Index, g: Index, *rest: Index) -> Index:
        *y, j = rest
        within = [axis.within_tile(i) for axis, i in zip(axes, y) if axis.tiled]
        return of_tile(*within, n, *(axis.number(i) if axis.tiled else i for axis, i in zip(axes, y)), j)

    kept, extent = rows, int(total.shape[-1])
    if is_copied and problem.data_format == "NCX":
        kept = [*rows[:-1], axes[-1].positions]
    dtype, shape = tensors.result_dtype(problem), (geometry.batch, 1, *kept, extent)
    if is_copied:
        stage = te.compute((geometry.batch, 1, *rows, extent), untiled, name="untiled")
        result = tensors.converted(stage, shape, dtype, "result")
    else:
        result = te.compute(shape, lambda *i: untiled(*i).astype(dtype), name="result")

    def output_map(n: Index, _: Index, *rest: Index) -> OutputMap:
        *y, j = rest
        inside = [each for i, axis, size in zip(y, axes, kept) for each in tensors.within(i, axis.positions, size)]
        inside += tensors.within(j, columns, extent)
        return OutputMap(inside, list(tensors.data_index(problem, "x" if is_data else "y", n, j, y)))

    found = with_zeros(problem, Sum((first, second), (result,), ("data", "filter"), ("sum",)), [output_map])
    return with_bias(problem, found)


def _summed_channels(data: te.Tensor, weights: te.Tensor, axes: Sequence[Axis]) -> te.Tensor:
    """(*f, n, *tiles, j): product f of each tile, summed over channels and over the taps of other axes."""
    products = [axis.products for axis in axes if axis.tiled]
    many, direct = len(products), [axis for axis in axes if not axis.tiled]
    names = [f"k_{place}" for place in range(len(direct))]
    *taps, s = tensors.reduce_axes([*(axis.taps for axis in direct), int(weights.shape[-2])], [*names, "s"])

    def element(*index: Index) -> Index:
        f, (n, *t, j) = index[:many], index[many:]
        outer = iter(taps)
        at = [i if axis.tiled else i + next(outer) * axis.dilation for axis, i in zip(axes, t)]
        return te.sum(data(*f, n, *at, s) * weights(*f, *taps, s, j), axis=[*taps, s])

    shape = (*products, data.shape[many], *(axis.tiles for axis in axes), weights.shape[-1])
    return te.compute(shape, element, name="sum")
