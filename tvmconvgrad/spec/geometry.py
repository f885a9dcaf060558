"""The numbers of one convolution, without layout, type or direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.spec.pads import tap_extent
from tvmconvgrad.spec.values import Shape


@dataclass(frozen=True)
class Geometry:
    """One convolution from `x` to `y`; sizes are in elements.

    Along each spatial axis, tap k reads element p * stride - pads_begin + k * dilation of x at position p of y. The
    forward Convolution goes from x to y, the forward ConvTranspose from y to x.
    """

    batch: int
    groups: int
    c: int
    """Channels of the x side, all groups."""
    o: int
    """Channels of the y side, all groups."""
    x: Shape
    y: Shape
    k: Shape
    strides: Shape
    dilations: Shape
    pads_begin: Shape
    pads_end: Shape

    @property
    def rank(self) -> int:
        """The number of spatial axes, 1 to 3."""
        return len(self.k)

    @property
    def is_depthwise(self) -> bool:
        """Whether there are several groups, of one channel of x and one of y each."""
        return self.groups > 1 and self.groups == self.c == self.o

    @property
    def tap_extent(self) -> Shape:
        """The span of the dilated kernel, (k-1)*dilations + 1 per axis."""
        return tuple(tap_extent(k, d) for k, d in zip(self.k, self.dilations, strict=True))

    @property
    def flops(self) -> int:
        """Floating-point operations of any of the three sums, two per product; padding is counted."""
        return 2 * self.batch * self.o * prod(self.y) * (self.c // self.groups) * prod(self.k)


def range_inside(step: int, offset: int, count: int, size: int) -> tuple[int, int]:
    """(first, end) of the 0 <= i < count with 0 <= i * step + offset < size; first >= end where there is none."""
    return max(0, -(offset // step)), min(count, (size - 1 - offset) // step + 1)


@dataclass(frozen=True)
class Crop:
    """The whole tensors of a problem whose geometry is but a part of them; sizes and places along each spatial axis."""

    x: Shape
    y: Shape
    k: Shape
    x_begins: Shape
    """Where the part begins in x."""
    y_begins: Shape
    k_begins: Shape
