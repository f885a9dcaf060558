"""Crops positions and taps that read nothing but padding, so that the same sum has fewer of them.

If padding is wider than the data, or the filter is longer, positions and taps at the ends of an axis read no element of
x. Their results are zero. What is left is a smaller convolution on a part of the same tensors, whose first and last
position and tap, along each axis, read something.

Numbers that lose their meaning become small, however large they were: the stride of a single position, and the dilation
of a single tap, become 1. If all pairs of position and tap that read x lie on one line, with taps falling while
positions rise, only the step along the line matters. Stride and dilation then shrink as far as all other pairs still
read outside of x.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from math import gcd

from tvmconvgrad.spec.geometry import Crop, range_inside
from tvmconvgrad.spec.pads import tap_extent
from tvmconvgrad.spec.problem import Gradient, Problem


@dataclass(frozen=True)
class _Axis:
    """One axis of a geometry, and where it begins in the whole tensors."""

    x: int
    y: int
    k: int
    stride: int
    dilation: int
    pad: int
    x_begin: int = 0
    y_begin: int = 0
    k_begin: int = 0

    def read_by_tap(self, tap: int) -> tuple[int, int]:
        """(first, end) of the positions at which a tap reads an element of x."""
        return range_inside(self.stride, tap * self.dilation - self.pad, self.y, self.x)

    def read_at_position(self, position: int) -> tuple[int, int]:
        """(first, end) of the taps that read an element of x at a position."""
        return range_inside(self.dilation, position * self.stride - self.pad, self.k, self.x)

    def element(self, position: int, tap: int) -> int:
        """The element of x that a tap reads at a position; it lies outside of x if it is padding."""
        return position * self.stride + tap * self.dilation - self.pad


_NOTHING = _Axis(0, 0, 0, 1, 1, 0)


def cropped(problem: Problem) -> Problem:
    """`problem` on the part of its tensors that has products; `problem` itself if that is all of them.

    If there are no products the part is empty: the whole result is zero.
    """
    g = problem.geometry
    axes = [_Axis(*axis) for axis in zip(g.x, g.y, g.k, g.strides, g.dilations, g.pads_begin)]
    if any(0 in (axis.x, axis.y, axis.k) for axis in axes):
        return problem
    found = [_drawn_in(_cropped(axis, problem.gradient)) for axis in axes]
    if found == axes:
        return problem
    if _NOTHING in found:
        found = [_NOTHING] * g.rank
    x, y, k, strides, dilations, pads, *begins = zip(*map(astuple, found))
    ends = (
        max(0, (i - 1) * s + tap_extent(j, d) - p - e) for e, i, j, s, d, p in zip(x, y, k, strides, dilations, pads)
    )
    part = replace(g, x=x, y=y, k=k, strides=strides, dilations=dilations, pads_begin=pads, pads_end=tuple(ends))
    return replace(problem, geometry=part, crop=Crop(g.x, g.y, g.k, *begins))


def _cropped(axis: _Axis, gradient: Gradient) -> _Axis:
    """The axis without positions and taps that read only padding; for a data gradient also without elements of x that
    have no products, if a sum would be computed for them."""
    pairs = _pairs(axis)
    if not pairs:
        return _NOTHING
    y_begin, y_last = min(first for first, _, _ in pairs), max(last for _, last, _ in pairs)
    k_begin, k_last = min(tap for _, _, tap in pairs), max(tap for _, _, tap in pairs)
    y, k = y_last + 1 - y_begin, k_last + 1 - k_begin
    part = replace(
        axis,
        y=y,
        k=k,
        stride=axis.stride if y > 1 else 1,
        dilation=axis.dilation if k > 1 else 1,
        pad=-axis.element(y_begin, k_begin),
        y_begin=y_begin,
        k_begin=k_begin,
    )
    if part == axis and not (gradient is Gradient.DATA and _sums_nothing(part)):
        return axis
    begin = min(axis.element(first, tap) for first, _, tap in pairs)
    end = max(axis.element(last, tap) for _, last, tap in pairs) + 1
    return replace(part, x=end - begin, x_begin=begin, pad=part.pad + begin)


def _drawn_in(axis: _Axis) -> _Axis:
    """The axis with about the smallest stride and dilation for which the same pairs read the same elements.

    A step along the line goes `across` positions forward and `back` taps backward, and moves by stride * across -
    dilation * back in x. That does not change if the dilation shrinks by a multiple of `across` and the stride by the
    same multiple of `back`. The bound keeps all pairs beside the line, which are at least dilation / across away from
    it, outside of x.
    """
    points = sorted({(first, tap) for first, _, tap in _pairs(axis)})
    if len(points) < 2 or any(first != last for first, last, _ in _pairs(axis)):
        return axis
    (position, tap), (next_position, next_tap) = points[:2]
    across, back = next_position - position, tap - next_tap
    line = all((at - position) * back == (tap - other) * across for at, other in points)
    if across <= 0 or back <= 0 or not line:
        return axis
    bound = 2 * axis.x * across + axis.x * axis.y + across
    times = (axis.dilation - bound) // across
    if times <= 0:
        return axis
    stride, dilation = axis.stride - times * back, axis.dilation - times * across
    pad = position * stride + tap * dilation - axis.element(position, tap)
    return replace(axis, stride=stride, dilation=dilation, pad=pad)


def _pairs(axis: _Axis) -> list[tuple[int, int, int]]:
    """(first position, last position, tap) of runs of pairs that read x, for each tap or for each position, whichever
    are fewer. They include the first and last pairs along every tensor."""
    if axis.k <= axis.y:
        runs = ((axis.read_by_tap(tap), tap) for tap in range(axis.k))
        return [(first, end - 1, tap) for (first, end), tap in runs if first < end]
    ranges = ((axis.read_at_position(position), position) for position in range(axis.y))
    return [(at, at, tap) for (first, end), at in ranges if first < end for tap in {first, end - 1}]


def _sums_nothing(axis: _Axis) -> bool:
    """Whether a data gradient would compute a sum for an element of x that no tap of its phase contributes to."""
    period, step = (number // gcd(axis.stride, axis.dilation) for number in (axis.stride, axis.dilation))
    for phase in range(min(period, axis.k)):
        taps = -(-(axis.k - phase) // period)
        begin = phase * axis.dilation - axis.pad
        first, end = -(begin // axis.stride), (axis.x - 1 - begin) // axis.stride + 1
        if first < end and (first < 0 or end > axis.y + (taps - 1) * step):
            return True
    return False
