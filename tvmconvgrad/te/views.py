"""How a stage sees one spatial axis of a tensor, and which of its elements a filter's taps read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir

from tvmconvgrad.spec import Geometry

SPARSE = 4
"""If the taps along an axis span more than so many times the elements that they read, those elements are gathered. No
layer of the suites has such dilations; where gathering begins to pay was not measured."""

Index: TypeAlias = ir.Expr


@dataclass(frozen=True)
class PaddedView:
    """How a stage of `extent` elements reads one spatial axis of a tensor of `size` elements.

    Element i of the stage is element i * step - shift of the tensor, or zero outside of it. Where the elements of
    `taps` are gathered side by side, it is element (i // taps) * step + (i % taps) * dilation - shift. With
    implicit padding the stage stores no zeros: the sum's indices may lie outside of it, and the schedule must leave
    those products out (schedules/transforms/padding_elision.py).
    """

    size: int
    extent: int
    shift: int = 0
    step: int = 1
    implicit: bool = False
    taps: int = 1
    dilation: int = 0

    def with_implicit_padding(self) -> PaddedView:
        """A view of the same axis that stores no zeros: itself if it reads no padding."""
        return self if self.is_inside else PaddedView(self.size, self.size, implicit=True)

    @property
    def is_inside(self) -> bool:
        """Whether every element of the stage lies in the tensor: the view reads no padding."""
        return self.shift <= 0 and self._last < self.size

    @property
    def _last(self) -> int:
        """The tensor's element that the stage's last one is; it may lie outside of the tensor."""
        return (self.extent // self.taps - 1) * self.step + (self.taps - 1) * self.dilation - self.shift

    def moved(self, index: Index) -> Index:
        """The element of the tensor at the stage's `index`, plus `shift`."""
        if self.taps == 1:
            return index * self.step
        return index // self.taps * self.step + index % self.taps * self.dilation

    def inside(self, index: Index) -> list[Index]:
        """The conditions for the stage's element at `index` to lie in the tensor; those that always hold are left
        out."""
        low = [self.moved(index) >= self.shift] if self.shift > 0 else []
        return low + ([self.moved(index) < self.shift + self.size] if self._last >= self.size else [])


def whole(sizes: Sequence[int]) -> list[PaddedView]:
    """Views of whole axes of these sizes, without padding."""
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
        """The stage's element that `tap` reads at `position`."""
        return position * self.stride + tap * self.dilation - self.begin


def map_accesses(geometry: Geometry, positions: Sequence[int], implicit_axes: int = 0) -> list[AccessMap]:
    """For each spatial axis, which elements of x the taps read at so many `positions` of y.

    With a single tap, the stage has only every stride-th element of x. Where the taps read a small share of the
    elements that they span (`SPARSE`), the stage has those, gathered tap by tap for each position.
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
