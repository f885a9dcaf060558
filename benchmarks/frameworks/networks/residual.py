"""ResNet-18 and ResNet-50 (He et al., 2015), ResNeXt-50 of 32 groups of 4 (Xie et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def convolution(source: int, target: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias, and its norm."""
    layer = nn.Conv2d(source, target, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(target))


class Residual(nn.Module):
    """Some convolutions beside the identity, or beside a projection where the shape changes."""

    def __init__(self, body: nn.Module, source: int, target: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = source == target and stride == 1
        self.shortcut = nn.Identity() if same else convolution(source, target, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return torch.relu(self.body(x) + self.shortcut(x))


def basic(source: int, width: int, stride: int) -> nn.Module:
    """Two 3x3 convolutions."""
    body = nn.Sequential(convolution(source, width, 3, stride), nn.ReLU(), convolution(width, width, 3))
    return Residual(body, source, width, stride)


def bottleneck(source: int, inner: int, target: int, stride: int, groups: int) -> nn.Module:
    """1x1, 3x3, 1x1."""
    body = nn.Sequential(
        *(convolution(source, inner, 1), nn.ReLU()),
        *(convolution(inner, inner, 3, stride, groups), nn.ReLU()),
        convolution(inner, target, 1),
    )
    return Residual(body, source, target, stride)


def _whole(*stages: nn.Module, channels: int) -> nn.Module:
    stem = nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet_18() -> nn.Module:
    """ResNet-18."""
    blocks, source = [], 64
    for stage, width in enumerate((64, 128, 256, 512)):
        blocks += [basic(source, width, 2 if stage else 1), basic(width, width, 1)]
        source = width
    return _whole(*blocks, channels=512)


def _deep(inner: int, groups: int) -> nn.Module:
    blocks, source = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for place in range(count):
            stride = 2 if stage and not place else 1
            blocks.append(bottleneck(source, inner << stage, 256 << stage, stride, groups))
            source = 256 << stage
    return _whole(*blocks, channels=2048)


def resnet_50() -> nn.Module:
    """ResNet-50."""
    return _deep(64, 1)


def resnext_50() -> nn.Module:
    """ResNeXt-50 32x4d."""
    return _deep(128, 32)
