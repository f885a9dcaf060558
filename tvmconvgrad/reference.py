"""The gradients by their definition, in float64, one tap of the filter after the other: slow, plain, and exact enough
to judge compiled kernels by. It shares nothing with them but the problem's numbers.

    for n, p, k, c, o, with i = p * stride - pads_begin + k * dilation:
        filter    dw[k, c, o] += x[n, i, c] * dy[n, p, o]
        data      dx[n, i, c] += dy[n, p, o] * w[k, c, o]
        forward   y[n, p, o]  += x[n, i, c] * w[k, c, o]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, prod, sqrt
from types import EllipsisType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tvmconvgrad.spec import Geometry, Gradient, Problem

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Window = tuple[slice | EllipsisType, ...]

_F32_EPSILON = float(np.finfo(np.float32).eps)
F32_INTEGERS = 2**24
"""f32 holds every integer up to here."""


@dataclass(frozen=True)
class Verdict:
    """How a result compares with the reference.

    `exact` says that the inputs are integers whose sums f32 holds exactly, so that nothing but equality will do.
    Otherwise `allowed` is what rounding allows at the element with the largest error. `wrong` counts elements.
    """

    exact: bool
    error: float
    allowed: float
    wrong: int

    @property
    def is_right(self) -> bool:
        """Whether no element is wrong."""
        return self.wrong == 0


def reference(problem: Problem, first: Array, second: Array) -> Float64:
    """The result of `problem` in float64, for two inputs of its shapes in the operator's order."""
    geometry = problem.geometry
    if problem.gradient is Gradient.FILTER:
        big, small = (second, first) if problem.transposed else (first, second)
        x, y = _padded(geometry, _side(problem, big)), _flat(_side(problem, small))
        w = np.stack([_flat(x[window]) @ y.swapaxes(1, 2) for window in _windows(geometry)])
        return _user_filter(problem, w)
    taps = zip(_windows(geometry), _filter(problem, second), strict=True)
    if problem.gradient is Gradient.DATA:
        y = _flat(_side(problem, first))
        x = _padded(geometry, np.zeros((*_channels(geometry, geometry.c), geometry.batch, *geometry.x)))
        for window, tap in taps:
            x[window] += (tap @ y).reshape(x[window].shape)
        return _user_side(problem, x[_unpadded(geometry)])
    x = _padded(geometry, _side(problem, first))
    y = np.zeros((*_channels(geometry, geometry.o), geometry.batch * prod(geometry.y)))
    for window, tap in taps:
        y += tap.swapaxes(1, 2) @ _flat(x[window])
    return _user_side(problem, y.reshape(*y.shape[:2], geometry.batch, *geometry.y))


TILES = 5
"""How many times the error may be that rounding allows where Winograd's algorithm is used. It was up to 3.7 times that
of direct sums (benchmarks/accuracy.py)."""

TF32_EPSILON = 2.0**-10
"""How far apart TF32's neighbours of 1 are."""
_TF32_INTEGERS = 2**11


def judge(
    problem: Problem, first: Array, second: Array, result: Array, by_tiles: bool = False, may_round: bool = False
) -> Verdict:
    """Compare a result with the reference; one that was computed `by_tiles` by Winograd's algorithm, or directly.
    `may_round`: both inputs may have been rounded to TF32 before.

    Integers whose sums stay within 2**24 have one right result: the sum, rounded to the result's type; where they may
    be rounded, if TF32 has all of them; by tiles, none has. Any other element may be off by what summing its products
    in f32 in any order explains, about sqrt(number of products) units in the last place of the sum of their magnitudes,
    by what rounding to TF32 takes from each, and by rounding to the result's type. By tiles it is `TILES` times that
    for the largest such sum, since rounding errors reach all of a tile.
    """
    one, two = first.astype(np.float64), second.astype(np.float64)
    exact = reference(problem, one, two)
    magnitude = reference(problem, abs(one), abs(two))
    if exact.size == 0:
        return Verdict(True, 0.0, 0.0, 0)
    integers = all(np.array_equal(values, np.rint(values)) for values in (one, two))
    is_exact = integers and not by_tiles and float(magnitude.max()) <= F32_INTEGERS
    if may_round:
        is_exact = is_exact and max(float(abs(values).max()) for values in (one, two)) <= _TF32_INTEGERS
    with np.errstate(over="ignore", invalid="ignore"):
        got = result.astype(np.float64)
        same = (exact.astype(result.dtype).astype(np.float64) == got) | (np.isnan(exact) & np.isnan(got))
        error = np.where(same, 0.0, abs(got - exact))
    if by_tiles:
        magnitude = np.full_like(magnitude, TILES * magnitude.max())
    allowed = np.zeros_like(exact) if is_exact else _allowed(problem, exact, magnitude, result.dtype)
    if may_round and not is_exact:
        allowed += TF32_EPSILON * magnitude  # half of it from each input
    worst = np.unravel_index(np.argmax(error), error.shape)
    return Verdict(is_exact, float(error[worst]), float(allowed[worst]), int((~(error <= allowed)).sum()))


def _allowed(problem: Problem, exact: Float64, magnitude: Float64, dtype: np.dtype[Any]) -> Float64:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    summing = (8 + sqrt(products(problem))) * _F32_EPSILON / 2 * magnitude
    return summing + abs(exact) * float(info.eps) / 2 + float(info.smallest_subnormal)


def exact_bound(problem: Problem) -> int:
    """The largest magnitude of integers in both inputs with which f32 holds all sums, in whatever order; 0: none."""
    return isqrt(F32_INTEGERS // max(products(problem), 1))


def products(problem: Problem) -> int:
    """The most products that one element of the result sums."""
    geometry = problem.geometry
    if problem.gradient is Gradient.FILTER:
        return geometry.batch * prod(geometry.y)
    channels = geometry.o if problem.gradient is Gradient.DATA else geometry.c
    return channels // geometry.groups * prod(geometry.k)


def _windows(geometry: Geometry) -> Iterator[Window]:
    """For each tap the elements of the padded x that it reads, one for each element of y."""
    for tap in itertools.product(*map(range, geometry.k)):
        axes = zip(tap, geometry.dilations, geometry.strides, geometry.y, strict=True)
        yield (..., *(slice(k * d, k * d + s * (y - 1) + 1 if y else k * d, s) for k, d, s, y in axes))


def _padded(geometry: Geometry, x: Float64) -> Float64:
    """The x side with zeros around it, as far as any tap reaches."""
    reach = (s * (y - 1) + e for s, y, e in zip(geometry.strides, geometry.y, geometry.tap_extent, strict=True))
    pads = zip(geometry.pads_begin, geometry.x, reach, strict=True)
    return np.pad(x, [(0, 0)] * 3 + [(begin, max(0, end - begin - size)) for begin, size, end in pads])


def _unpadded(geometry: Geometry) -> Window:
    return (..., *(slice(begin, begin + x) for begin, x in zip(geometry.pads_begin, geometry.x, strict=True)))


def _channels(geometry: Geometry, channels: int) -> tuple[int, int]:
    return geometry.groups, channels // geometry.groups


def _flat(side: Float64) -> Float64:
    """(groups, channels, everything else)."""
    return side.reshape(*side.shape[:2], prod(side.shape[2:]))


def _side(problem: Problem, data: Array) -> Float64:
    """A data tensor as (groups, channels of the group, batch, *space)."""
    axis = problem.data_format.index("C") if problem.data_format == "NCX" else -1
    channels_first: Float64 = np.moveaxis(data, axis, 0).astype(np.float64)
    return channels_first.reshape(*_channels(problem.geometry, channels_first.shape[0]), *channels_first.shape[1:])


def _user_side(problem: Problem, side: Float64) -> Float64:
    channels_first = side.reshape(side.shape[0] * side.shape[1], *side.shape[2:])
    return np.moveaxis(channels_first, 0, 1 if problem.data_format == "NCX" else -1)


def _filter_order(problem: Problem) -> tuple[int, ...]:
    """Where the axes (*X, C, O) stand in the user's filter."""
    rank, axes = problem.geometry.rank, problem.filter_axes
    begins = {axis: sum(rank if other == "X" else 1 for other in axes[: axes.index(axis)]) for axis in axes}
    return (*range(begins["X"], begins["X"] + rank), begins["C"], begins["O"])


def _filter(problem: Problem, filter_: Array) -> Float64:
    """A filter as (taps, groups, c of the group, o of the group)."""
    geometry = problem.geometry
    ordered = _flipped(problem, filter_.transpose(_filter_order(problem)).astype(np.float64))
    c, o = ordered.shape[-2:]
    taps: Float64 = ordered.reshape(prod(geometry.k), c, *_channels(geometry, o)).swapaxes(1, 2)
    return taps


def _user_filter(problem: Problem, taps: Float64) -> Float64:
    geometry = problem.geometry
    ordered: Float64 = taps.swapaxes(1, 2).reshape(*geometry.k, geometry.c // geometry.groups, geometry.o)
    filter_: Float64 = _flipped(problem, ordered).transpose(np.argsort(_filter_order(problem)))
    return filter_


def _flipped(problem: Problem, ordered: Float64) -> Float64:
    """A filter (*X, C, O) with its taps in the order of the geometry, or back."""
    return np.flip(ordered, tuple(range(problem.geometry.rank))) if problem.flips_filter else ordered
