"""Layers of networks that people train, as convolutions: sizes are of the input, `pad` is on both sides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A 2-D convolution with square sizes."""

    name: str
    channels: int
    filters: int
    size: int
    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    @property
    def output_size(self) -> int:
        """Rows and columns of the output."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1


def _resnet_stage(number: int, size: int, width: int, entering: int) -> list[Layer]:
    """The distinct layers of one stage of bottleneck blocks; from the second stage on it halves the size."""
    stride = 1 if number == 2 else 2
    inner = size // stride
    return [
        Layer(f"res{number}a_branch1", entering, 4 * width, size, 1, stride),
        Layer(f"res{number}a_branch2a", entering, width, size, 1, stride),
        Layer(f"res{number}a_branch2b", width, width, inner, 3, 1, 1),
        Layer(f"res{number}a_branch2c", width, 4 * width, inner, 1),
        Layer(f"res{number}b_branch2a", 4 * width, width, inner, 1),
    ]


RESNET_50 = [
    Layer("conv1", 3, 64, 224, 7, 2, 3),
    *_resnet_stage(2, 56, 64, 64),
    *_resnet_stage(3, 56, 128, 256),
    *_resnet_stage(4, 28, 256, 512),
    *_resnet_stage(5, 14, 512, 1024),
]

GROUPED = [
    Layer("depthwise 144 3x3", 144, 144, 56, 3, 1, 1, 144),
    Layer("depthwise 144 3x3 s2", 144, 144, 56, 3, 2, 1, 144),
    Layer("depthwise 96 7x7", 96, 96, 56, 7, 1, 3, 96),
    Layer("resnext 128/32 3x3", 128, 128, 56, 3, 1, 1, 32),
    Layer("resnext 512/32 3x3", 512, 512, 14, 3, 1, 1, 32),
]

SUITES = {"resnet_50": RESNET_50, "grouped": GROUPED}
