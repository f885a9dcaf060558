"""Which elements of x are stored, and which of them a filter's taps read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvmconvgrad.spec import Geometry
from tvmconvgrad.te.tensors import Im2col, Index, Stage
from tvmconvgrad.te.views import PaddedView

SPARSE = 4
"""If the taps along an axis span more than so many times the elements that they read, those elements are gathered. No
layer of the suites has such dilations; where gathering begins to pay was not measured."""


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


def im2col(x: Stage, accesses: Sequence[AccessMap], phases: int = 1) -> Im2col:
    """What taps read of the stage `x`. With several `phases`, the stride along the last axis, that is stored phase by
    phase: element i is at (i % phases, i // phases)."""

    def element(n: Index, g: Index, c: Index, p: Sequence[Index], k: Sequence[Index]) -> Index:
        reads = [access.reads(i, j) for access, i, j in zip(accesses, p, k)]
        if phases > 1:
            ahead = k[-1] * accesses[-1].dilation
            reads[-1:] = [ahead % phases, p[-1] + ahead // phases]
        return x(n, g, c, *reads)

    return element
