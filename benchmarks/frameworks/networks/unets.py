"""U-Net (Ronneberger et al., 2015) and 3D U-Net (Cicek et al., 2016), with padded convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = {2: (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d), 3: (nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d)}


class UNet(nn.Module):
    """Down and up again, with a way across at each level."""

    def __init__(self, rank: int, channels: int, levels: int) -> None:
        super().__init__()
        conv, up, pool = LAYERS[rank]

        def twice(source: int, target: int) -> nn.Module:
            first, second = conv(source, target, 3, padding=1), conv(target, target, 3, padding=1)
            return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

        widths = [channels << level for level in range(levels)]
        self.pool = pool(2)
        self.down = nn.ModuleList(twice(source, target) for source, target in zip([1, *widths], widths))
        self.up = nn.ModuleList(up(2 * width, width, 2, 2) for width in reversed(widths[:-1]))
        self.across = nn.ModuleList(twice(2 * width, width) for width in reversed(widths[:-1]))
        self.last = conv(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer."""
        kept = []
        for level, down in enumerate(self.down):
            x = down(self.pool(x) if level else x)
            kept.append(x)
        for up, across, other in zip(self.up, self.across, reversed(kept[:-1])):
            x = across(torch.cat([other, up(x)], 1))
        return self.last(x)  # type: ignore[no-any-return]


def unet() -> nn.Module:
    """U-Net of five levels."""
    return UNet(2, 32, 5)


def unet_3d() -> nn.Module:
    """3D U-Net of four levels."""
    return UNet(3, 16, 4)
