"""Winograd's algorithm for filters of three taps: two results along an axis from four products instead of six.

With y the two results, d the four elements that they meet, and g the taps (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016, section 4.1, F(2, 3)):

    y = A^T [(G g) * (B^T d)]    B^T = 1  0 -1  0    G = 1   0   0    A^T = 1  1  1  0
                                       0  1  1  0        1/2 1/2 1/2        0  1 -1 -1
                                       0 -1  1  0        1/2-1/2 1/2
                                       0  1  0 -1        0   0   1

Along two axes, with products of these matrices, it is 16 products instead of 36. The sum over channels goes over the
products, and so becomes a matrix product for each of the 16. A data gradient is the convolution with the taps in
reverse order. In a filter gradient the three taps are the results, and two elements of y take the place of the taps,
F(3, 2), with the same B^T:

    W = A^T [(G x) * (B^T d)]    G = 1  0    A^T = 1  1/2  1/2  0
                                     1  1          0  1/2 -1/2  0
                                     1 -1          0  1/2  1/2 -1
                                     0  1

The factors are 1 and 1/2, so sums of small integers stay exact; of other numbers they are about as close as direct sums
(docs/concepts.md). But an infinity or a NaN reaches all results of the tiles that it meets: in a filter gradient all
taps.

With dilation d, tiles of elements d apart interleave. Axes without three taps are summed directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, OutputMap, Sum
from tvmconvgrad.te.views import PaddedView, whole
from tvmconvgrad.te.zeros import with_zeros

Matrix = tuple[tuple[float, ...], ...]

ELEMENTS: Matrix = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
TAPS: Matrix = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
RESULTS: Matrix = ((1, 1, 1, 0), (0, 1, -1, -1))
PAIRS: Matrix = ((1, 0), (1, 1), (1, -1), (0, 1))
TAP_RESULTS: Matrix = ((1, 0.5, 0.5, 0), (0, 0.5, -0.5, 0), (0, 0.5, 0.5, -1))

PRODUCTS = len(ELEMENTS)
"""Products of a tile along an axis."""

TILE = len(RESULTS)
"""Results of a data gradient's tile along an axis, or elements of y that a filter gradient's takes."""

MOST_AXES = 2
"""Along more axes a tile would be so large that its transformation takes what it saves."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis: `positions`, by tiles where it is `tiled`, else each for itself; and its taps."""

    tiled: bool
    positions: int
    taps: int
    dilation: int
    multiple: int = 1
    """Of what number the tiles are a multiple, those that interleave counted once."""

    @property
    def interleaved(self) -> int:
        """How many tiles interleave."""
        return self.dilation if self.tiled else 1

    @property
    def tiles(self) -> int:
        """How many tiles there are: a number of those that interleave."""
        if not self.tiled:
            return self.positions
        return tensors.ceil_to(-(-self.positions // (TILE * self.dilation)), self.multiple) * self.dilation

    @property
    def runs(self) -> int:
        """How many tiles there are, those that interleave counted once."""
        return self.tiles // self.interleaved

    @property
    def covered(self) -> int:
        """How many positions the tiles have."""
        return self.tiles * TILE if self.tiled else self.positions

    @property
    def extent(self) -> int:
        """How many elements they meet."""
        return self.covered + (self.taps - 1) * self.dilation

    def begin(self, tile: Index) -> Index:
        """The first position of a tile."""
        return tile // self.dilation * (TILE * self.dilation) + tile % self.dilation

    def tile(self, position: Index) -> Index:
        """The tile of a position."""
        return position // (TILE * self.dilation) * self.dilation + position % self.dilation

    def place(self, position: Index) -> Index:
        """Which of its tile's positions one is."""
        return position // self.dilation % TILE


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """Along which axes a problem can be computed so: of those with three taps the last ones. None where a stride is
    greater than one, groups are several, a filter gradient is zero for some taps, or taps leave gaps between them."""
    geometry = problem.geometry
    taps_are_zero = problem.gradient is Gradient.FILTER and problem.whole.k != geometry.k
    sizes = geometry.y if problem.gradient is Gradient.DATA else geometry.x
    has_gaps = any(k > 1 and d > size for k, d, size in zip(geometry.k, geometry.dilations, sizes))
    if geometry.groups > 1 or max(geometry.strides) > 1 or taps_are_zero or has_gaps:
        return (False,) * geometry.rank
    able = [k == 3 for k in geometry.k]
    return tuple(is_able and sum(able[axis:]) <= MOST_AXES for axis, is_able in enumerate(able))


def axes_of(problem: Problem, multiples: Sequence[int]) -> list[Axis]:
    """A problem's spatial axes: of the result, or, for a filter gradient, of y; tiles along each are rounded up."""
    geometry = problem.geometry
    sizes = geometry.x if problem.gradient is Gradient.DATA else geometry.y
    return [Axis(*axis) for axis in zip(tiled_axes(problem), sizes, geometry.k, geometry.dilations, multiples)]


def tiled_positions(problem: Problem, multiples: Multiples, axes: Sequence[Axis], is_copied: bool) -> Sum:
    """A data gradient or a forward convolution of `problem`, channels rounded up to `multiples`.

    Where it `is_copied` the result is a copy of a stage "untiled"; in NCX, with rows of the user's length.
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

    tiled_data = _tiled("tiled_data", data, axes, ELEMENTS)
    channels = weights.shape[:-3:-1] if is_data else weights.shape[-2:]
    tiled_filter = _tiled_filter(tap, axes, channels)
    total = _summed_channels(tiled_data, tiled_filter, axes)
    rows = [axis.covered for axis in axes]

    def untiled(n: Index, g: Index, *rest: Index) -> Index:
        *y, j = rest
        output_maps = [axis.place(i) for axis, i in zip(axes, y) if axis.tiled]
        at = [axis.tile(i) if axis.tiled else i for axis, i in zip(axes, y)]
        return _combined([RESULTS] * len(output_maps), output_maps, lambda *f: total(n, *f, *at, j))

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

    return with_zeros(problem, Sum((first, second), (result,), ("data", "filter"), ("sum",)), [place])


def tiled_filter_gradient(problem: Problem, multiples: Multiples, axes: Sequence[Axis], is_copied: bool) -> Sum:
    """The filter gradient of `problem`, by tiles of y, channels rounded up to `multiples`.

    Where it `is_copied` the result is a copy of a stage "untiled", of whole vectors in the order (*k, c, o).
    """
    geometry = problem.geometry
    first, second = tensors.placeholders(problem)
    x, y = (second, first) if problem.transposed else (first, second)
    x_views = [PaddedView(size, axis.extent, pad) for size, axis, pad in zip(geometry.x, axes, geometry.pads_begin)]
    y_views = [PaddedView(size, axis.covered) for size, axis in zip(geometry.y, axes)]
    x_data = tensors.padded_data(x, problem, "x", "x_data", geometry.c, x_views, multiples, multiples.c)
    y_data = tensors.padded_data(y, problem, "y", "y_data", geometry.o, y_views, multiples, multiples.o)
    total = _summed_positions(_tiled("tiled_x", x_data, axes, ELEMENTS), _tiled("tiled_y", y_data, axes, PAIRS), axes)
    dtype = tensors.result_dtype(problem)

    def untiled(*index: Index) -> Index:
        *k, c, o = index
        tiled, direct = ([i for i, axis in zip(k, axes) if axis.tiled == wanted] for wanted in (True, False))
        return _combined([TAP_RESULTS] * len(tiled), tiled, lambda *f: total(*f, *direct, c, o))

    element: Callable[..., Index] = untiled
    if is_copied:
        element = te.compute((*geometry.k, *total.shape[-2:]), untiled, name="untiled")

    def placed(*index: Index) -> Index:
        k, c, o = tensors.filter_parts(problem, index)
        return element(*k, c, o).astype(dtype)

    result = te.compute(problem.output_shape, placed, name="result")
    return Sum((first, second), (result,), ("x_data", "y_data"), ("sum",))


def _tiled(name: str, data: te.Tensor, axes: Sequence[Axis], matrix: Matrix) -> te.Tensor:
    """A stage of data (n, g, s, *elements) as (n, *f, s, *tiles): each tile's elements combined by the matrix's rows f;
    along other axes what there is."""
    tiled = [axis for axis in axes if axis.tiled]
    extents = [axis.tiles if axis.tiled else extent for axis, extent in zip(axes, data.shape[3:])]

    def element(n: Index, *rest: Index) -> Index:
        f, s, t = rest[: len(tiled)], rest[len(tiled)], rest[len(tiled) + 1 :]

        def value(*i: int) -> Index:
            inner = iter(i)
            return data(n, 0, s, *(a.begin(at) + next(inner) * a.dilation if a.tiled else at for a, at in zip(axes, t)))

        return _combined([matrix] * len(tiled), f, value)

    return te.compute((data.shape[0], *[PRODUCTS] * len(tiled), data.shape[2], *extents), element, name=name)


def _tiled_filter(tap: Callable[..., Index], axes: Sequence[Axis], channels: Sequence[Index]) -> te.Tensor:
    """The filter as (*f, *taps of other axes, s, j)."""
    tiled, direct = ([axis for axis in axes if axis.tiled == wanted] for wanted in (True, False))

    def element(*index: Index) -> Index:
        f, k, channel = index[: len(tiled)], index[len(tiled) : -2], index[-2:]

        def value(*i: int) -> Index:
            inner, outer = iter(i), iter(k)
            return tap(*(next(inner) if axis.tiled else next(outer) for axis in axes), *channel)

        return _combined([TAPS] * len(tiled), f, value)

    shape = (*[PRODUCTS] * len(tiled), *(axis.taps for axis in direct), *channels)
    return te.compute(shape, element, name="tiled_filter")


def _summed_channels(data: te.Tensor, weights: te.Tensor, axes: Sequence[Axis]) -> te.Tensor:
    """(n, *f, *tiles, j): the products of a tile, summed over channels and the taps of other axes."""
    many = sum(axis.tiled for axis in axes)
    direct = [axis for axis in axes if not axis.tiled]
    names = [f"k_{place}" for place in range(len(direct))]
    *taps, s = tensors.reduce_axes([*(axis.taps for axis in direct), int(weights.shape[-2])], [*names, "s"])

    def element(n: Index, *rest: Index) -> Index:
        f, t, j = rest[:many], rest[many:-1], rest[-1]
        outer = iter(taps)
        at = [i if axis.tiled else i + next(outer) * axis.dilation for axis, i in zip(axes, t)]
        return te.sum(data(n, *f, s, *at) * weights(*f, *taps, s, j), axis=[*taps, s])

    shape = (data.shape[0], *[PRODUCTS] * many, *(axis.tiles for axis in axes), weights.shape[-1])
    return te.compute(shape, element, name="sum")


def _summed_positions(x: te.Tensor, y: te.Tensor, axes: Sequence[Axis]) -> te.Tensor:
    """(*f, *taps of other axes, c, o): the products, summed over images and tiles."""
    many = sum(axis.tiled for axis in axes)
    direct = [axis for axis in axes if not axis.tiled]
    extents = [int(y.shape[0]), *(axis.tiles for axis in axes)]
    n, *tiles = tensors.reduce_axes(extents, ["n", *tensors.spatial_names("t", len(axes))])

    def element(*index: Index) -> Index:
        f, k, (c, o) = index[:many], iter(index[many:-2]), index[-2:]
        at = [t if axis.tiled else t + next(k) * axis.dilation for axis, t in zip(axes, tiles)]
        return te.sum(x(n, *f, c, *at) * y(n, *f, o, *tiles), axis=[n, *tiles])

    shape = (*[PRODUCTS] * many, *(axis.taps for axis in direct), x.shape[1 + many], y.shape[1 + many])
    return te.compute(shape, element, name="sum")


def _combined(matrices: Sequence[Matrix], rows: Sequence[Index], value: Callable[..., Index]) -> Index:
    """The sum over i, j, .. of matrices[0][rows[0]][i] * matrices[1][rows[1]][j] * .. * value(i, j, ..)."""
    if not matrices:
        return value()
    (matrix, *others), (at, *rest) = matrices, rows
    columns = [_combined(others, rest, lambda *inner, i=i: value(i, *inner)) for i in range(len(matrix[0]))]
    *choices, chosen = [_linear(row, columns) for row in matrix]
    for number, other in reversed(list(enumerate(choices))):
        chosen = tirx.Select(at == number, other, chosen)
    return chosen


def _linear(factors: Sequence[float], values: Sequence[Index]) -> Index:
    """The sum of factors times values, of which no factor is greater than one."""
    total: Index | None = None
    for factor, value in zip(factors, values):
        if factor:
            term = value if abs(factor) == 1 else value * tirx.const(abs(factor), tensors.ACCUMULATOR)
            if total is None:
                total = term if factor > 0 else -term
            else:
                total = total + term if factor > 0 else total - term
    assert total is not None
    return total
