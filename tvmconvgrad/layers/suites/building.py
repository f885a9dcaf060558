"""What the suites are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.spec.values import Shape


@dataclass(frozen=True)
class Suite:
    """A network's layers by the batch size."""

    name: str
    paper: str
    batch: int
    """What one core computes in milliseconds."""
    layers: Callable[[int], list[Layer]]


def square(
    name: str,
    batch: int,
    channels: int,
    filters: int,
    size: int | Shape,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    *,
    groups: int = 1,
    dilation: int = 1,
    rank: int = 2,
    op: str = "Convolution",
) -> Layer:
    """A layer whose kernel, stride, pads and dilation are the same on each axis; `size` is the input's."""
    return Layer(
        name=name,
        op=op,
        batch=batch,
        channels=channels,
        filters=filters,
        input_size=(size,) * rank if isinstance(size, int) else size,
        kernel=(kernel,) * rank,
        strides=(stride,) * rank,
        dilations=(dilation,) * rank,
        pads_begin=(pad,) * rank,
        pads_end=(pad,) * rank,
        groups=groups,
    )


def distinct(layers: Iterable[Layer]) -> list[Layer]:
    """The first layer of each shape."""
    found: dict[Layer, Layer] = {}
    for layer in layers:
        found.setdefault(replace(layer, name="-"), layer)
    return list(found.values())
