"""Winograd's algorithm for filters of three taps: two results along an axis from four products instead of six.

With y the two results, d the four elements that they read, and g the taps (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016, section 4.1, F(2, 3)):

    y = A^T [(G g) * (B^T d)]    B^T = 1  0 -1  0    G = 1   0   0    A^T = 1  1  1  0
                                       0  1  1  0        1/2 1/2 1/2        0  1 -1 -1
                                       0 -1  1  0        1/2-1/2 1/2
                                       0  1  0 -1        0   0   1

Along two axes each matrix is applied along both, F(2x2, 3x3): 16 products instead of 36. Channels are summed before A^T
is applied, which makes one matrix product of each of the 16. A data gradient is the convolution with the taps in
reverse order. In a filter gradient the three taps are the results, and two elements of dy take the place of the taps,
F(3, 2), with the same B^T:

    dw = A^T [(G dy) * (B^T d)]  G = 1  0    A^T = 1  1/2  1/2  0
                                     1  1          0  1/2 -1/2  0
                                     1 -1          0  1/2  1/2 -1
                                     0  1

The factors are 1 and 1/2, so sums of small integers stay exact. For other numbers the error is about that of direct
sums (docs/concepts.md has figures). But an infinity or a NaN reaches all results of the tiles that read it: in a filter
gradient all taps.

With dilation d the elements of a tile lie d apart, and d tiles interleave. Axes without three taps are summed directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.bias import with_bias
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
"""Along an axis, results of a data gradient's tile, or elements of dy that a filter gradient's tile reads."""

MOST_AXES = 2
"""The algorithm is applied along at most so many axes: with three, a tile of 64 products would be transformed. Whether
that pays was not measured."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis: its `positions`, in tiles if it is `tiled`, otherwise one by one, and its taps."""

    tiled: bool
    positions: int
    taps: int
    dilation: int
    multiple: int = 1
    """The number of tiles is rounded up to a multiple of this; interleaved tiles count once."""

    @property
    def interleaved(self) -> int:
        """The number of tiles that interleave: the dilation."""
        return self.dilation if self.tiled else 1

    @property
    def tiles(self) -> int:
        """The number of tiles, or of positions where the axis is not tiled: a multiple of `interleaved`."""
        if not self.tiled:
            return self.positions
        return tensors.ceil_to(-(-self.positions // (TILE * self.dilation)), self.multiple) * self.dilation

    @property
    def runs(self) -> int:
        """The number of tiles; interleaved tiles count once."""
        return self.tiles // self.interleaved

    @property
    def covered(self) -> int:
        """The number of positions that the tiles cover."""
        return self.tiles * TILE if self.tiled else self.positions

    @property
    def extent(self) -> int:
        """The number of elements that those positions read."""
        return self.covered + (self.taps - 1) * self.dilation

    def begin(self, tile: Index) -> Index:
        """The first position of a tile."""
        return tile // self.dilation * (TILE * self.dilation) + tile % self.dilation

    def tile(self, position: Index) -> Index:
        """The number of the tile that has a position."""
        return position // (TILE * self.dilation) * self.dilation + position % self.dilation

    def place(self, position: Index) -> Index:
        """The number of a position within its tile, below `TILE`."""
        return position // self.dilation % TILE


def tiled_axes(problem: Problem) -> tuple[bool, ...]:
    """For each axis, whether Winograd's algorithm applies: along the last `MOST_AXES` of those with three taps.

    Along none if a stride is greater than one, if there are several groups, if a filter gradient is zero for some taps,
    or if a dilation is larger than the tensor.
    """
    geometry = problem.geometry
    taps_are_zero = problem.gradient is Gradient.FILTER and problem.whole.k != geometry.k
    sizes = geometry.y if problem.gradient is Gradient.DATA else geometry.x
    has_gaps = any(k > 1 and d > size for k, d, size in zip(geometry.k, geometry.dilations, sizes))
    if geometry.groups > 1 or max(geometry.strides) > 1 or taps_are_zero or has_gaps:
        return (False,) * geometry.rank
    able = [k == 3 for k in geometry.k]
    return tuple(is_able and sum(able[axis:]) <= MOST_AXES for axis, is_able in enumerate(able))


def axes_of(problem: Problem, multiples: Sequence[int]) -> list[Axis]:
    """A problem's spatial axes: of the result, or, for a filter gradient, of dy. Tiles along each are rounded up to
    `multiples`."""
    geometry = problem.geometry
    sizes = geometry.x if problem.gradient is Gradient.DATA else geometry.y
    return [Axis(*axis) for axis in zip(tiled_axes(problem), sizes, geometry.k, geometry.dilations, multiples)]


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
    return with_bias(problem, Sum((first, second), (result,), ("x_data", "y_data"), ("sum",)))


def _tiled(name: str, data: te.Tensor, axes: Sequence[Axis], matrix: Matrix) -> te.Tensor:
    """A stage of data (n, g, s, *elements) as (n, *f, s, *tiles): along tiled axes, row f of the matrix combines each
    tile's elements; other axes stay as they are."""
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
    """The transformed filter (*f, *taps of other axes, s, j): s are the summed channels, j the result's."""
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
    """(n, *f, *tiles, j): product f of each tile, summed over channels and over the taps of other axes."""
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
    """(*f, *taps of other axes, c, o): product f, summed over images and tiles."""
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
    """The sum of factors times values; no factor's absolute value is greater than one."""
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
