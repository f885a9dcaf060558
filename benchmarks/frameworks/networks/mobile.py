"""MobileNetV2 (Sandler et al., 2018) and ConvNeXt-T (Liu et al., 2022): depthwise convolutions of 3x3 and of 7x7."""

from __future__ import annotations

from torch import Tensor, nn

from networks.residual import convolution

INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and the first block's stride."""


class Inverted(nn.Module):
    """An inverted residual block."""

    def __init__(self, source: int, target: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = source * expansion
        expand = [convolution(source, inner, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = (convolution(inner, inner, 3, stride, inner), nn.ReLU6())
        self.body = nn.Sequential(*expand, *depthwise, convolution(inner, target, 1))
        self.adds = source == target and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def mobilenet_v2() -> nn.Module:
    """MobileNetV2, width 1."""
    layers: list[nn.Module] = [convolution(3, 32, 3, 2), nn.ReLU6()]
    source = 32
    for expansion, channels, count, stride in INVERTED:
        for place in range(count):
            layers.append(Inverted(source, channels, 1 if place else stride, expansion))
            source = channels
    layers += [convolution(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Wide(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            ChannelNorm(channels),
            nn.Conv2d(channels, 4 * channels, 1),
            nn.GELU(),
            nn.Conv2d(4 * channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        return x + self.body(x)


def convnext_t() -> nn.Module:
    """ConvNeXt-T."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    for stage, count in enumerate((3, 3, 9, 3)):
        channels = 96 << stage
        if stage:
            layers += [ChannelNorm(channels // 2), nn.Conv2d(channels // 2, channels, 2, 2)]
        layers += [Wide(channels) for _ in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))
