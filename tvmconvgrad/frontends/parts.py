"""The parts of a layer, and a layer in words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tvmconvgrad.spec.values import Shape


class Part(str, Enum):
    """The three results: the output, the gradient with respect to the input (data), and the weights gradient."""

    FORWARD = "forward"
    DATA = "data gradient"
    WEIGHTS = "weights gradient"


_USUAL = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
"""What a layer's text leaves out: numbers that are so on all axes."""


def layer_text(
    name: str,
    channels: tuple[int, int],
    kernel: Shape,
    batch: int,
    image: Shape,
    numbers: Mapping[str, Shape],
    groups: int,
) -> str:
    """A layer as reports name it, as in "conv2d 64->128 3x3, 8x56x56, stride 2x2"; usual numbers are left out."""
    text = f"{name} {channels[0]}->{channels[1]} {_times(kernel)}, {batch}x{_times(image)}"
    text += "".join(f", {key} {_times(values)}" for key, values in numbers.items() if {*values} - {_USUAL[key]})
    return text + (f", groups {groups}" if groups > 1 else "")


def _times(sizes: Shape) -> str:
    return "x".join(str(size) for size in sizes)
