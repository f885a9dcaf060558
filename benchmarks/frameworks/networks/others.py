"""VGG-11 (Simonyan & Zisserman, 2014), DCGAN (Radford et al., 2015), WaveNet's stack (van den Oord et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VGG_11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
"""Channels of the convolutions; 0: a pooling."""


def vgg_11() -> nn.Module:
    """VGG-11, with one linear layer: its three have most of the weights and no convolution."""
    layers: list[nn.Module] = []
    source = 3
    for channels in VGG_11:
        layers += [nn.Conv2d(source, channels, 3, padding=1), nn.ReLU()] if channels else [nn.MaxPool2d(2)]
        source = channels or source
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def dcgan() -> nn.Module:
    """The generator and, behind it, the discriminator, for 64x64 images."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU()]
    for source in (512, 256, 128):
        up = nn.ConvTranspose2d(source, source // 2, 4, 2, 1, bias=False)
        layers += [up, nn.BatchNorm2d(source // 2), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(), nn.Conv2d(3, 64, 4, 2, 1, bias=False)]
    layers += [nn.LeakyReLU(0.2)]
    for source in (64, 128, 256):
        down = nn.Conv2d(source, source * 2, 4, 2, 1, bias=False)
        layers += [down, nn.BatchNorm2d(source * 2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, bias=False), nn.Flatten())


class Gated(nn.Module):
    """A dilated causal convolution with a gate."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = dilation
        self.both = nn.Conv1d(channels, 2 * channels, 2, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        value, gate = self.both(x)[..., : x.shape[-1]].chunk(2, 1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


def wavenet() -> nn.Module:
    """Two stacks of ten dilations."""
    blocks = [Gated(64, 1 << place) for _ in range(2) for place in range(10)]
    return nn.Sequential(*blocks, nn.ReLU(), nn.Conv1d(64, 256, 1))
