"""Pads and sizes of one spatial axis.

Notation as everywhere: the forward Convolution goes from x to y.
"""

from __future__ import annotations

from dataclasses import dataclass


def tap_extent(kernel: int, dilation: int) -> int:
    """Return the span of a dilated kernel."""
    return (kernel - 1) * dilation + 1


def convolution_size(x: int, pads: tuple[int, int], extent: int, stride: int) -> int:
    """Return y of a Convolution with these pads."""
    return (x + sum(pads) - extent) // stride + 1


def transposed_size(y: int, pads: tuple[int, int], extent: int, stride: int, output_padding: int) -> int:
    """Return x of a ConvTranspose with these pads."""
    return stride * (y - 1) + extent - sum(pads) + output_padding


def same_size(x: int, stride: int) -> int:
    """Return y under auto_pad same_upper or same_lower: x/stride, rounded up."""
    return -(-x // stride)


def same_pads(auto_pad: str, total: int) -> tuple[int, int]:
    """Split a total; an odd element goes to the end for same_upper, to the beginning for same_lower.

    ConvolutionBackpropData's formula block says the opposite of its own attribute text. The text wins, since
    the forward Convolution does so and the operator is its gradient.
    """
    less, more = total // 2, total - total // 2
    return (less, more) if auto_pad == "same_upper" else (more, less)


@dataclass(frozen=True)
class PadAxis:
    """One spatial axis: what the attributes say about it, and the kernel's size."""

    kernel: int
    stride: int
    dilation: int
    auto_pad: str
    explicit: tuple[int, int]
    """pads_begin and pads_end, (0, 0) unless auto_pad is none."""
    output_padding: int | None
    """None where the attribute was not given."""

    @property
    def extent(self) -> int:
        """The span of the dilated kernel."""
        return tap_extent(self.kernel, self.dilation)

    @property
    def same(self) -> bool:
        """Whether auto_pad is same_upper or same_lower, so that the pads depend on the sizes."""
        return self.auto_pad.startswith("same")

    def pads(self, y: int, x: int) -> tuple[int, int]:
        """Return the pads in force between y and x."""
        if not self.same:
            return self.explicit
        unpadded = transposed_size(y, (0, 0), self.extent, self.stride, self.output_padding or 0)
        return same_pads(self.auto_pad, max(0, unpadded - x))

    def convolution_y(self, x: int) -> int:
        """Return the y to which a Convolution takes x; 0 or less where the kernel exceeds the padded x."""
        if self.same:
            return same_size(x, self.stride)
        return convolution_size(x, self.explicit, self.extent, self.stride)

    def transposed_x(self, y: int, pads: tuple[int, int]) -> int:
        """Return the x to which a ConvTranspose takes y, output_padding included."""
        return transposed_size(y, pads, self.extent, self.stride, self.output_padding or 0)

    def y_of(self, x: int) -> int:
        """Return the largest y, which may be negative, that a ConvTranspose takes to at most x."""
        return self.convolution_y(x) if self.same else self.convolution_y(x - (self.output_padding or 0))
