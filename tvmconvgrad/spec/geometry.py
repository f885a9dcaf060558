"""The numbers of one convolution, without layout, type or direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.spec.pads import tap_extent
from tvmconvgrad.spec.values import Shape


@dataclass(frozen=True)
class Geometry:
    """One convolution between a big side `y` and a small side `x`; sizes are element counts.

    Per spatial axis, position x of the small side meets tap k at x*strides - pads_begin + k*dilations
    of the big side. The forward Convolution goes from y to x, the forward ConvTranspose from x to y.
    """

    batch: int
    groups: int
    c: int
    """Channels of the y side, all groups."""
    o: int
    """Channels of the x side, all groups."""
    y: Shape
    x: Shape
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
    def tap_extent(self) -> Shape:
        """The span of the dilated kernel, (k-1)*dilations + 1 per axis."""
        return tuple(tap_extent(k, d) for k, d in zip(self.k, self.dilations, strict=True))

    @property
    def flops(self) -> int:
        """Floating-point operations of any of the three sums, two per product; padding is counted."""
        return 2 * self.batch * self.o * prod(self.x) * (self.c // self.groups) * prod(self.k)


def met(step: int, offset: int, count: int, size: int) -> tuple[int, int]:
    """(first, end) of the 0 <= i < count with 0 <= i * step + offset < size; first >= end where there is none."""
    return max(0, -(offset // step)), min(count, (size - 1 - offset) // step + 1)


@dataclass(frozen=True)
class Crop:
    """The whole tensors of a problem whose geometry is but a part of them; sizes and places along each spatial axis."""

    y: Shape
    x: Shape
    k: Shape
    y_begins: Shape
    """Where the part begins in the big side."""
    x_begins: Shape
    k_begins: Shape
