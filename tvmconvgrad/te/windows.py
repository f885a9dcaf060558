"""How a stage sees one spatial axis of a tensor, and what a filter's taps meet there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir

from tvmconvgrad.spec import Geometry

SPARSE = 4
"""From how many elements of Y for each product on, along an axis, those that are met are gathered. No layer of the
suites has so many; from how many on it pays was not measured."""

Index: TypeAlias = ir.Expr


@dataclass(frozen=True)
class Window:
    """How a stage sees one spatial axis of a tensor of `size` elements.

    Element i of the stage, of `extent` elements, is element i * step - shift of the tensor; zero outside of it. Where
    `taps` are gathered side by side, it is element (i // taps) * step + (i % taps) * dilation - shift. A bare stage has
    no zeros: sums read outside of it, and conditions must leave that out (schedules/transforms/padding_elision.py).
    """

    size: int
    extent: int
    shift: int = 0
    step: int = 1
    bare: bool = False
    taps: int = 1
    dilation: int = 0

    def bared(self) -> Window:
        """The bare window on the same axis; itself if it has no zeros."""
        return self if self.is_inside else Window(self.size, self.size, bare=True)

    @property
    def is_inside(self) -> bool:
        """Whether every element of the stage is one of the tensor."""
        return self.shift <= 0 and self._last < self.size

    @property
    def _last(self) -> int:
        """The last element of the tensor that the stage sees."""
        return (self.extent // self.taps - 1) * self.step + (self.taps - 1) * self.dilation - self.shift

    def moved(self, index: Index) -> Index:
        """The tensor's element that is the stage's, plus `shift`."""
        if self.taps == 1:
            return index * self.step
        return index // self.taps * self.step + index % self.taps * self.dilation

    def inside(self, index: Index) -> list[Index]:
        """The conditions, as far as they are not always true, for the stage's element to be one of the tensor."""
        low = [self.moved(index) >= self.shift] if self.shift > 0 else []
        return low + ([self.moved(index) < self.shift + self.size] if self._last >= self.size else [])


def whole(sizes: Sequence[int]) -> list[Window]:
    """Windows that see axes of these sizes as they are."""
    return [Window(size, size) for size in sizes]


@dataclass(frozen=True)
class Sweep:
    """What the taps sweep of Y along one axis: tap k at position x meets the stage's element
    x * stride + k * dilation - begin."""

    window: Window
    stride: int
    dilation: int
    begin: int = 0

    def meets(self, position: Index, tap: Index) -> Index:
        """The stage's element that a tap meets at a position."""
        return position * self.stride + tap * self.dilation - self.begin


def swept(geometry: Geometry, positions: Sequence[int], bare_axes: int = 0) -> list[Sweep]:
    """What the taps sweep of Y at `positions` of X.

    A single tap meets every stride-th element only; then just these are kept. So are, tap by tap for each position, the
    elements that are met where these are but a small share of all between the first and the last.
    """
    sweeps = []
    for axis, (size, count, taps, stride, dilation, pad) in enumerate(
        zip(geometry.y, positions, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    ):
        if taps == 1:
            sweeps.append(Sweep(Window(size, count, pad, stride), 1, dilation))
            continue
        window = Window(size, (count - 1) * stride + (taps - 1) * dilation + 1, pad)
        if window.extent > SPARSE * count * taps:
            gathered = Window(size, count * taps, pad, stride, taps=taps, dilation=dilation)
            sweeps.append(Sweep(gathered, taps, 1))
            continue
        kept = window.bared() if axis < bare_axes else window
        sweeps.append(Sweep(kept, stride, dilation, window.shift - kept.shift))
    return sweeps
