"""Transformations of tiles: a matrix is applied along each tiled axis, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from tvmconvgrad.te.tensors import Index
from tvmconvgrad.te.winograd.axes import TiledAxis
from tvmconvgrad.te.winograd.cook_toom import Matrix
from tvmconvgrad.te.winograd.linear import linear

Element = Callable[..., Index]


def tiled(name: str, data: te.Tensor, axes: Sequence[TiledAxis], matrices: Sequence[Matrix]) -> te.Tensor:
    """A stage of data (n, g, s, *elements) as (*f, *shifts, n, *tiles, s): along tiled axes, row f of the matrix
    combines each tile's elements; other axes stay as they are. Where tiles begin from several neighbours
    (`TiledAxis.shifts`), there is an axis of these."""
    extents = [axis.tiles if axis.tiled else extent for axis, extent in zip(axes, data.shape[3:])]
    shifts = [axis.shifts for axis in axes if axis.is_shifted]
    many, outer_at = len(matrices), len(matrices) + len(shifts)

    def value(*index: Index) -> Index:
        inner, shifted, (n, *t, s) = iter(index[:many]), iter(index[many:outer_at]), index[outer_at:]

        def element(axis: TiledAxis, at: Index) -> Index:
            if not axis.tiled:
                return at
            place = axis.begin(at) + next(inner) * axis.dilation
            return place + next(shifted) if axis.is_shifted else place

        return data(n, 0, s, *map(element, axes, t))

    outer = (*shifts, data.shape[0], *extents, data.shape[2])
    return _stage(name, matrices, outer, value)


def tiled_filter(
    tap: Element, axes: Sequence[TiledAxis], channels: Sequence[int], matrices: Sequence[Matrix]
) -> te.Tensor:
    """The transformed filter (*f, *taps of other axes, s, j): s are the summed channels, j the result's."""
    direct = [axis.taps for axis in axes if not axis.tiled]

    def value(*index: Index) -> Index:
        inner, outer = iter(index[: len(matrices)]), iter(index[len(matrices) : -2])
        return tap(*(next(inner) if axis.tiled else next(outer) for axis in axes), *index[-2:])

    return _stage("tiled_filter", matrices, (*direct, *channels), value)


def _stage(name: str, matrices: Sequence[Matrix], outer: Sequence[Index], value: Element) -> te.Tensor:
    """The stage (*f, *outer) of `transformed` elements."""
    shape = (*map(len, matrices), *outer)
    return te.compute(shape, transformed(name, matrices, outer, value), name=name)


def transformed(name: str, matrices: Sequence[Matrix], outer: Sequence[Index], value: Element) -> Element:
    """Element (*f, *outer) of value (*i, *outer), with row f of a matrix applied to each axis i.

    Along all axes but the last, that is a stage of its own: name_0, name_1, .. Each then computes short sums only.
    """
    for place, matrix in enumerate(matrices[:-1]):
        shape = (*map(len, matrices[: place + 1]), *(len(other[0]) for other in matrices[place + 1 :]), *outer)
        value = te.compute(shape, _applied(matrix, place, value), name=f"{name}_{place}")
    return _applied(matrices[-1], len(matrices) - 1, value)


def _applied(matrix: Matrix, place: int, value: Element) -> Element:
    """Elements with the matrix applied along one axis of `value`."""

    def element(*index: Index) -> Index:
        values = [value(*index[:place], i, *index[place + 1 :]) for i in range(len(matrix[0]))]
        *choices, chosen = [linear(row, values) for row in matrix]
        for number, other in reversed(list(enumerate(choices))):
            chosen = tirx.Select(index[place] == number, other, chosen)
        return chosen

    return element
