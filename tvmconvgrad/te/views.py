"""How a stage sees one spatial axis of a tensor, and which of its elements a filter's taps read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir

from tvmconvgrad.spec import Geometry

SPARSE = 4
"""From how many elements of x for each product on, along an axis, those that are read are gathered. No layer of the
suites has so many; from how many on it pays was not measured."""

Index: TypeAlias = ir.Expr


@dataclass(frozen=True)
class PaddedView:
    """How a stage sees one spatial axis of a tensor of `size` elements.

    Element i of the stage, of `extent` elements, is element i * step - shift of the tensor; zero outside of it. Where
    `taps` are gathered side by side, it is element (i // taps) * step + (i % taps) * dilation - shift. With
    implicit padding a stage has no zeros: sums read outside of it, and conditions must leave that out
    (schedules/transforms/padding_elision.py).
    """

    size: int
    extent: int
    shift: int = 0
    step: int = 1
    implicit: bool = False
    taps: int = 1
    dilation: int = 0

    def with_implicit_padding(self) -> PaddedView:
        """The view on the same axis without zeros; itself if it has none."""
        return self if self.is_inside else PaddedView(self.size, self.size, implicit=True)

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


def whole(sizes: Sequence[int]) -> list[PaddedView]:
    """Views of axes of these sizes as they are."""
    return [PaddedView(size, size) for size in sizes]


@dataclass(frozen=True)
class AccessMap:
    """What the taps read of x along one axis: tap k at position p reads the stage's element
    p * stride + k * dilation - begin."""

    view: PaddedView
    stride: int
    dilation: int
    begin: int = 0

    def reads(self, position: Index, tap: Index) -> Index:
        """The stage's element that a tap reads at a position."""
        return position * self.stride + tap * self.dilation - self.begin


def map_accesses(geometry: Geometry, positions: Sequence[int], implicit_axes: int = 0) -> list[AccessMap]:
    """What the taps read of x at `positions` of y.

    A single tap reads every stride-th element only; then just these are kept. Where the elements that taps read are but
    a small share of those between the first and the last, they are gathered, tap by tap for each position.
    """
    accesses = []
    for axis, (size, count, taps, stride, dilation, pad) in enumerate(
        zip(geometry.x, positions, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    ):
        if taps == 1:
            accesses.append(AccessMap(PaddedView(size, count, pad, stride), 1, dilation))
            continue
        view = PaddedView(size, (count - 1) * stride + (taps - 1) * dilation + 1, pad)
        if view.extent > SPARSE * count * taps:
            gathered = PaddedView(size, count * taps, pad, stride, taps=taps, dilation=dilation)
            accesses.append(AccessMap(gathered, taps, 1))
            continue
        kept = view.with_implicit_padding() if axis < implicit_axes else view
        accesses.append(AccessMap(kept, stride, dilation, view.shift - kept.shift))
    return accesses
