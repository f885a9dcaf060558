"""A data gradient or a forward convolution by tiles of its result.

All output phases of a strided data gradient are one sum with the channels (r, c) of all phases r, as in
te/data_gradient.py. Phases whose first positions differ read tiles that begin at different elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm import te, tirx

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.operands import PaddedData, padded_filter
from tvmconvgrad.te.phases import reaches_all
from tvmconvgrad.te.tensors import ACCUMULATOR, Expression, Index, OutputMap, Stage
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.winograd import transforms
from tvmconvgrad.te.winograd.axes import TiledAxis, phases_of
from tvmconvgrad.te.winograd.cook_toom import cook_toom
from tvmconvgrad.te.winograd.transforms import Element
from tvmconvgrad.te.zeros import with_zeros


@dataclass(frozen=True)
class _Terms:
    """What is summed for element (n, g, *t, j) of a result: with stride 1, over taps and channels s."""

    data: Stage
    """(n, g, s, *elements)."""
    tap: Element
    """The filter's tap (*k, s, j) that is multiplied with element t + k * dilation."""
    j_extent: int
    """The extent of j."""
    shifts: Callable[[Index], list[Index]]
    """By how many elements tiles of channel j are shifted along each axis."""
    output_map: Callable[[Sequence[int]], Callable[..., OutputMap]]
    """The map of a stage of a given shape."""
    has_gaps: bool = False
    """Whether some elements of the user's tensor have no products."""


def tiled_positions(
    problem: Problem, channels: tuple[int, int], axes: Sequence[TiledAxis], is_copied: bool
) -> Expression:
    """A data gradient or a forward convolution of `problem`; operands have so many `channels` (c, o), of which those
    that the problem does not have are zero. With several output phases, c has no such channels.

    If it `is_copied`, the result is a copy of a stage "untiled"; in NCX its rows then have the user's length.
    """
    first, second = tensors.placeholders(problem)
    terms_of = _of_data_gradient if problem.gradient is Gradient.DATA else _of_forward
    terms = terms_of(problem, first, second, channels, axes)
    matrices = [cook_toom(axis.tile, axis.taps) for axis in axes if axis.tiled]
    tiled_data = transforms.tiled("tiled_data", terms.data, axes, [each.elements for each in matrices])
    s_and_j = int(terms.data.shape[2]), terms.j_extent
    tiled_filter = transforms.tiled_filter(terms.tap, axes, s_and_j, [each.taps for each in matrices])
    total = _summed_channels(tiled_data, tiled_filter, axes, terms.shifts)
    rows = [axis.covered for axis in axes]
    kept_order = total.shape[len(matrices) :]
    of_tile = transforms.transformed("untiled", [each.results for each in matrices], kept_order, total)

    def untiled(n: Index, g: Index, *rest: Index) -> Index:
        *y, j = rest
        within = [axis.within_tile(i) for axis, i in zip(axes, y) if axis.tiled]
        return of_tile(*within, n, *(axis.number(i) if axis.tiled else i for axis, i in zip(axes, y)), j)

    kept, batch = rows, problem.geometry.batch
    if is_copied and problem.data_format == "NCX":
        kept = [*rows[:-1], axes[-1].positions]
    dtype, shape = tensors.result_dtype(problem), (batch, 1, *kept, terms.j_extent)
    if is_copied:
        stage = te.compute((batch, 1, *rows, terms.j_extent), untiled, name="untiled")
        result = tensors.converted(stage, shape, dtype, "result")
    else:
        result = te.compute(shape, lambda *i: untiled(*i).astype(dtype), name="result")
    found = Expression((first, second), (result,), ("data", "filter"), ("sum",))
    return with_bias(problem, with_zeros(problem, found, [terms.output_map(shape)], terms.has_gaps))


def _of_data_gradient(
    problem: Problem, y: Stage, w: Stage, channels: tuple[int, int], axes: Sequence[TiledAxis]
) -> _Terms:
    part, geometry = phases_of(problem), problem.geometry
    assert part is not None  # there are axes
    j_extent = channels[0] * prod(axis.phases for axis in axes)
    views = [
        PaddedView(size, axis.extent, -part.y_range(place)[0])
        for place, (size, axis) in enumerate(zip(geometry.y, axes))
    ]
    weights = part.filter(w, (1, j_extent, channels[1]), "filter", ACCUMULATOR)

    def tap(*index: Index) -> Index:
        *k, s, j = index
        return weights(0, *(axis.taps - 1 - i for axis, i in zip(axes, k)), j, s)

    def shifts(j: Index) -> list[Index]:
        phases, _ = part.phases(j)
        groups = part.phase_groups
        return [part.first(place, r) - min(group.firsts) for place, (r, group) in enumerate(zip(phases, groups))]

    has_gaps = any(group.reads.has_gaps for group in part.phase_groups) or not reaches_all(geometry)
    data = PaddedData(problem, "y", y, (1, channels[1]), views).stage("data")
    return _Terms(data, tap, j_extent, shifts, part.output_map, has_gaps)


def _of_forward(problem: Problem, x: Stage, w: Stage, channels: tuple[int, int], axes: Sequence[TiledAxis]) -> _Terms:
    geometry = problem.geometry
    views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(geometry.x, axes, geometry.pads_begin)]
    weights = padded_filter(problem, w, (1, *channels), "filter")

    def map_of(shape: Sequence[int]) -> Callable[..., OutputMap]:
        def output_map(n: Index, _: Index, *rest: Index) -> OutputMap:
            *y, j = rest
            sizes = zip(y, axes, shape[2:-1])
            inside = [each for i, axis, size in sizes for each in tensors.within(i, axis.positions, size)]
            inside += tensors.within(j, geometry.o, shape[-1])
            return OutputMap(inside, list(tensors.data_index(problem, "y", n, j, y)))

        return output_map

    def shifts(_: Index) -> list[Index]:
        return [tirx.const(0, "int64")] * len(axes)

    data = PaddedData(problem, "x", x, (1, channels[0]), views).stage("data")
    return _Terms(data, lambda *index: weights(0, *index), channels[1], shifts, map_of)


def _summed_channels(
    data: te.Tensor, weights: te.Tensor, axes: Sequence[TiledAxis], shifts: Callable[[Index], list[Index]]
) -> te.Tensor:
    """(*f, n, *tiles, j): product f of each tile, summed over channels and over the taps of other axes."""
    products = [axis.products for axis in axes if axis.tiled]
    many, direct = len(products), [axis for axis in axes if not axis.tiled]
    names = [f"k_{place}" for place in range(len(direct))]
    *taps, s = tensors.reduce_axes([*(axis.taps for axis in direct), int(weights.shape[-2])], [*names, "s"])

    def element(*index: Index) -> Index:
        f, (n, *t, j) = index[:many], index[many:]
        outer, shifted = iter(taps), shifts(j)
        at = [i if axis.tiled else i + next(outer) * axis.dilation + shift for axis, i, shift in zip(axes, t, shifted)]
        tiles_at = [shift for axis, shift in zip(axes, shifted) if axis.is_shifted]
        return te.sum(data(*f, *tiles_at, n, *at, s) * weights(*f, *taps, s, j), axis=[*taps, s])

    images = data.shape[many + sum(axis.is_shifted for axis in axes)]
    shape = (*products, images, *(axis.tiles for axis in axes), weights.shape[-1])
    return te.compute(shape, element, name="sum")
