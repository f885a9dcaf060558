"""Winograd's algorithm: several results along an axis from fewer products than direct sums take.

With y the m results of a tile, d the n = m + k - 1 elements that they read, and g the k taps (te/cook_toom.py has the
matrices):

    y = A^T [(G g) * (B^T d)]

Along two axes each matrix is applied along both. F(2x2, 3x3) has 16 products instead of 36, F(4x4, 3x3) 36 instead of
144. Channels are summed before A^T is applied, which makes one matrix product of each of the 16 or 36. A data gradient
is the convolution with the taps in reverse order. In a filter gradient the k taps are the results, and the m elements
of dy take the place of the taps: F(k, m).

Rounding errors grow with n (docs/concepts.md has figures). With n = 4 the factors are 1 and 1/2, so sums of small
integers stay exact. An infinity or a NaN reaches all results of the tiles that read it: in a filter gradient all taps.

With dilation d the elements of a tile lie d apart, and d tiles interleave. Other axes are summed directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tvm import te, tirx

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.cook_toom import POINTS, Matrix, cook_toom
from tvmconvgrad.te.tensors import Index, Multiples, OutputMap, Sum
from tvmconvgrad.te.views import PaddedView, whole
from tvmconvgrad.te.zeros import with_zeros

Element = Callable[..., Index]

PRODUCTS = {1: ((4,), (6,)), 2: ((4, 4), (4, 6), (6, 6))}
"""For one and two tiled axes, the numbers of products that a tile may have along each."""

MOST_PRODUCTS = {Gradient.FILTER: 24, Gradient.DATA: 36, Gradient.FORWARD: 36}
"""The most products of a tile: so many that the error stays within 4 times that of direct sums. With 36, filter
gradients of ResNet-50's and VGG-19's layers had 3.4 to 5.5 times the error, and with 24 2.4 to 3.6 times (normally
distributed inputs, norms of the differences from float64)."""

MOST_AXES = 2
"""The algorithm is applied along at most so many axes: with three, a tile of 64 products would be transformed. Whether
that pays was not measured."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis: its `positions`, of which `tile` form a tile, and its taps."""

    tile: int
    """Results of a data gradient's tile, or elements of dy that a filter gradient's tile reads; 1: no tiles."""
    positions: int
    taps: int
    dilation: int
    multiple: int = 1
    """The number of tiles is rounded up to a multiple of this; interleaved tiles count once."""

    @property
    def tiled(self) -> bool:
        """Whether Winograd's algorithm applies along this axis."""
        return self.tile > 1

    @property
    def products(self) -> int:
        """Products of a tile."""
        return self.tile + self.taps - 1

    @property
    def interleaved(self) -> int:
        """The number of tiles that interleave: the dilation."""
        return self.dilation if self.tiled else 1

    @property
    def tiles(self) -> int:
        """The number of tiles, or of positions where the axis is not tiled: a multiple of `interleaved`."""
        if not self.tiled:
            return self.positions
        return tensors.ceil_to(-(-self.positions // (self.tile * self.dilation)), self.multiple) * self.dilation

    @property
    def runs(self) -> int:
        """The number of tiles; interleaved tiles count once."""
        return self.tiles // self.interleaved

    @property
    def covered(self) -> int:
        """The number of positions that the tiles cover."""
        return self.tiles * self.tile

    @property
    def extent(self) -> int:
        """The number of elements that those positions read."""
        return self.covered + (self.taps - 1) * self.dilation

    def begin(self, tile: Index) -> Index:
        """The first position of a tile."""
        return tile // self.dilation * (self.tile * self.dilation) + tile % self.dilation

    def number(self, position: Index) -> Index:
        """The number of the tile that has a position."""
        return position // (self.tile * self.dilation) * self.dilation + position % self.dilation

    def place(self, position: Index) -> Index:
        """The number of a position within its tile, below `tile`."""
        return position // self.dilation % self.tile


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """For each axis, whether Winograd's algorithm may apply: along the last `MOST_AXES` of those with several taps, and
    fewer than the largest tile has products.

    Along none if a stride is greater than one, if there are several groups, if a filter gradient is zero for some taps,
    or if a dilation is larger than the tensor.
    """
    geometry = problem.geometry
    taps_are_zero = problem.gradient is Gradient.FILTER and problem.whole.k != geometry.k
    sizes = geometry.y if problem.gradient is Gradient.DATA else geometry.x
    has_gaps = any(k > 1 and d > size for k, d, size in zip(geometry.k, geometry.dilations, sizes))
    if geometry.groups > 1 or max(geometry.strides) > 1 or taps_are_zero or has_gaps:
        return (False,) * geometry.rank
    able = [1 < k < max(POINTS) for k in geometry.k]
    return tuple(is_able and sum(able[axis:]) <= MOST_AXES for axis, is_able in enumerate(able))


def tile_products(problem: Problem) -> list[tuple[int, ...]]:
    """The numbers of products that a problem's tiles may have along each tiled axis: all choices of `PRODUCTS` by which
    tiles have several positions."""
    taps = [k for k, is_tiled in zip(problem.geometry.k, tiled_axes(problem)) if is_tiled]
    most = MOST_PRODUCTS[problem.gradient]
    choices = [products for products in PRODUCTS.get(len(taps), ()) if prod(products) <= most]
    return [products for products in choices if all(map(operator.lt, taps, products))]


def axes_of(problem: Problem, products: Sequence[int], multiples: Sequence[int]) -> list[Axis]:
    """A problem's spatial axes: of the result, or, for a filter gradient, of dy. Tiles have so many products along
    those that are tiled, and tiles along each are rounded up to `multiples`."""
    geometry, along = problem.geometry, iter(products)
    sizes = geometry.x if problem.gradient is Gradient.DATA else geometry.y
    tiles = [next(along) + 1 - k if tiled else 1 for k, tiled in zip(geometry.k, tiled_axes(problem))]
    return [Axis(*axis) for axis in zip(tiles, sizes, geometry.k, geometry.dilations, multiples)]


def tiled_positions(problem: Problem, multiples: Multiples, axes: Sequence[Axis], is_copied: bool) -> Sum:
    """A data gradient or a forward convolution of `problem`, channels rounded up to `multiples`.

    If it `is_copied`, the result is a copy of a stage "untiled"; in NCX its rows then have the user's length.
    """
    geometry, is_data = problem.geometry, problem.gradient is Gradient.DATA
    first, second = tensors.placeholders(problem)
    summed, columns = (geometry.o, geometry.c) if is_data else (geometry.c, geometry.o)
    reaches = [(axis.taps - 1) * axis.dilation for axis in axes]
    pads = [reach - pad if is_data else pad for reach, pad in zip(reaches, geometry.pads_begin)]
    sizes = geometry.y if is_data else geometry.x
    views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(sizes, axes, pads)]
    wanted = multiples.o if is_data else multiples.c
    data = tensors.padded_data(first, problem, "y" if is_data else "x", "data", summed, views, multiples, wanted)
    weights = tensors.padded_filter(second, problem, "filter", whole(geometry.k), multiples)

    def tap(*index: Index) -> Index:
        *at, s, j = index
        k = [axis.taps - 1 - i for axis, i in zip(axes, at)] if is_data else at
        return weights(0, *k, *((j, s) if is_data else (s, j)))

    transforms = [cook_toom(axis.tile, axis.taps) for axis in axes if axis.tiled]
    tiled_data = _tiled("tiled_data", data, axes, [each.elements for each in transforms])
    channels = weights.shape[:-3:-1] if is_data else weights.shape[-2:]
    tiled_filter = _tiled_filter(tap, axes, channels, [each.taps for each in transforms])
    total = _summed_channels(tiled_data, tiled_filter, axes)
    rows = [axis.covered for axis in axes]
    kept_order = total.shape[len(transforms) :]
    of_tile = _transformed("untiled", [each.results for each in transforms], kept_order, total)

    def untiled(n: Index, g: Index, *rest: Index) -> Index:
        *y, j = rest
        places = [axis.place(i) for axis, i in zip(axes, y) if axis.tiled]
        return of_tile(*places, n, *(axis.number(i) if axis.tiled else i for axis, i in zip(axes, y)), j)

    kept, extent = rows, int(total.shape[-1])
    if is_copied and problem.data_format == "NCX":
        kept = [*rows[:-1], axes[-1].positions]
    dtype, shape = tensors.result_dtype(problem), (geometry.batch, 1, *kept, extent)
    if is_copied:
        stage = te.compute((geometry.batch, 1, *rows, extent), untiled, name="untiled")
        result = tensors.converted(stage, shape, dtype, "result")
    else:
        result = te.compute(shape, lambda *i: untiled(*i).astype(dtype), name="result")

    def place(n: Index, _: Index, *rest: Index) -> OutputMap:
        *y, j = rest
        inside = [each for i, axis, size in zip(y, axes, kept) for each in tensors.within(i, axis.positions, size)]
        inside += tensors.within(j, columns, extent)
        return OutputMap(inside, list(tensors.data_index(problem, "x" if is_data else "y", n, j, y)))

    found = with_zeros(problem, Sum((first, second), (result,), ("data", "filter"), ("sum",)), [place])
    return with_bias(problem, found)


def tiled_filter_gradient(problem: Problem, multiples: Multiples, axes: Sequence[Axis], is_copied: bool) -> Sum:
    """The filter gradient of `problem`, by tiles of dy; channels are rounded up to `multiples`.

    If it `is_copied`, the result is a copy of a stage "untiled" (*k, c, o), which has whole vectors of channels.
    """
    geometry = problem.geometry
    first, second = tensors.placeholders(problem)
    x, y = (second, first) if problem.transposed else (first, second)
    x_views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(geometry.x, axes, geometry.pads_begin)]
    y_views = [PaddedView(size, axis.covered) for size, axis in zip(geometry.y, axes)]
    x_data = tensors.padded_data(x, problem, "x", "x_data", geometry.c, x_views, multiples, multiples.c)
    y_data = tensors.padded_data(y, problem, "y", "y_data", geometry.o, y_views, multiples, multiples.o)
    transforms = [cook_toom(axis.taps, axis.tile, divides_results=True) for axis in axes if axis.tiled]
    tiled_x = _tiled("tiled_x", x_data, axes, [each.elements for each in transforms])
    tiled_y = _tiled("tiled_y", y_data, axes, [each.taps for each in transforms])
    total = _summed_positions(tiled_x, tiled_y, axes)
    of_tile = _transformed("untiled", [each.results for each in transforms], total.shape[len(transforms) :], total)
    dtype = tensors.result_dtype(problem)

    def untiled(*index: Index) -> Index:
        *k, c, o = index
        tiled, direct = ([i for i, axis in zip(k, axes) if axis.tiled == wanted] for wanted in (True, False))
        return of_tile(*tiled, *direct, c, o)

    element: Element = untiled
    if is_copied:
        element = te.compute((*geometry.k, *total.shape[-2:]), untiled, name="untiled")

    def placed(*index: Index) -> Index:
        k, c, o = tensors.filter_parts(problem, index)
        return element(*k, c, o).astype(dtype)

    result = te.compute(problem.output_shape, placed, name="result")

    def flipped(*index: Index) -> OutputMap:
        return OutputMap([], list(tensors.filter_index(problem, *tensors.filter_parts(problem, index))))

    output_maps = (flipped,) if problem.flips_filter else ()
    found = Sum((first, second), (result,), ("x_data", "y_data"), ("sum",), output_maps=output_maps)
    return with_bias(problem, found)


def _tiled(name: str, data: te.Tensor, axes: Sequence[Axis], matrices: Sequence[Matrix]) -> te.Tensor:
    """A stage of data (n, g, s, *elements) as (*f, n, *tiles, s): along tiled axes, row f of the matrix combines each
    tile's elements; other axes stay as they are."""
    extents = [axis.tiles if axis.tiled else extent for axis, extent in zip(axes, data.shape[3:])]
    many = len(matrices)

    def value(*index: Index) -> Index:
        inner, (n, *t, s) = iter(index[:many]), index[many:]
        return data(n, 0, s, *(a.begin(at) + next(inner) * a.dilation if a.tiled else at for a, at in zip(axes, t)))

    outer = (data.shape[0], *extents, data.shape[2])
    return _stage(name, matrices, outer, value)


def _tiled_filter(
    tap: Element, axes: Sequence[Axis], channels: Sequence[Index], matrices: Sequence[Matrix]
) -> te.Tensor:
    """The transformed filter (*f, *taps of other axes, s, j): s are the summed channels, j the result's."""
    direct = [axis.taps for axis in axes if not axis.tiled]

    def value(*index: Index) -> Index:
        inner, outer = iter(index[: len(matrices)]), iter(index[len(matrices) : -2])
        return tap(*(next(inner) if axis.tiled else next(outer) for axis in axes), *index[-2:])

    return _stage("tiled_filter", matrices, (*direct, *channels), value)


def _stage(name: str, matrices: Sequence[Matrix], outer: Sequence[Index], value: Element) -> te.Tensor:
    """The stage (*f, *outer) of `_transformed` elements."""
    shape = (*map(len, matrices), *outer)
    return te.compute(shape, _transformed(name, matrices, outer, value), name=name)


def _transformed(name: str, matrices: Sequence[Matrix], outer: Sequence[Index], value: Element) -> Element:
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
        *choices, chosen = [_linear(row, values) for row in matrix]
        for number, other in reversed(list(enumerate(choices))):
            chosen = tirx.Select(index[place] == number, other, chosen)
        return chosen

    return element


@dataclass(frozen=True)
class Term:
    """A term `factor` * `value` of a sum; `place` is its column in the matrix."""

    place: int
    factor: Fraction
    value: Index


def _linear(factors: Sequence[Fraction], values: Sequence[Index]) -> Index:
    """The sum of factors times values, in parts that rows for the points p and -p share: even and odd powers of p."""
    terms = _with_pairs_added([Term(*term) for term in zip(range(len(values)), factors, values) if term[1]])
    parts = [[term for term in terms if term.place % 2 == odd] for odd in (0, 1)]
    first, *rest = sorted((_scaled_sum(part) for part in parts if part), key=lambda part: part[0] < 0)
    total = first[1] if first[0] > 0 else -first[1]
    for sign, value in rest:
        total = total + value if sign > 0 else total - value
    return total


def _with_pairs_added(terms: Sequence[Term]) -> list[Term]:
    """The terms, those at the columns of p and -p made one where their factors have the same size."""
    found: list[Term] = []
    for term in terms:
        last = found[-1] if found else None
        if last and last.place % 2 and last.place + 1 == term.place and abs(last.factor) == abs(term.factor):
            both = last.value + term.value if last.factor == term.factor else last.value - term.value
            found[-1] = Term(last.place, last.factor, both)
        else:
            found.append(term)
    return found


def _scaled_sum(terms: Sequence[Term]) -> tuple[int, Index]:
    """A sum of terms, as its sign and a sum in which the first factor is positive."""
    sign = 1 if terms[0].factor > 0 else -1
    total: Index | None = None
    for term in terms:
        size = abs(term.factor)
        value = term.value if size == 1 else term.value * tirx.const(float(size), tensors.ACCUMULATOR)
        total = value if total is None else total + value if sign * term.factor > 0 else total - value
    return sign, total


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


def _summed_positions(x: te.Tensor, y: te.Tensor, axes: Sequence[Axis]) -> te.Tensor:
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
