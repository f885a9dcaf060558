"""Teach a small U-Net to take noise out of photographs, with PyTorch's kernels and with this package's.

    pip install -e ".[torch,examples]"
    python examples/denoise.py

It trains on one of scikit-learn's two photographs and cleans the other one. Writes `denoised.png`: the noisy one,
what is left of the noise, and the loss of both trainings over time.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

import tvmconvgrad.torch as cgt

BATCH, SIZE, NOISE = 8, 96, 0.2


class UNet(nn.Module):
    """Three levels, 24 channels at the first one; what it returns is the noise."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        widths = (channels, 2 * channels, 4 * channels)
        self.down = nn.ModuleList(self._twice(source, width) for source, width in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1])
        self.across = nn.ModuleList(self._twice(2 * width, width) for width in widths[-2::-1])
        self.last = nn.Conv2d(channels, 3, 1)

    @staticmethod
    def _twice(source: int, target: int) -> nn.Module:
        first, second = nn.Conv2d(source, target, 3, padding=1), nn.Conv2d(target, target, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, rows, columns), both a multiple of four, without their noise."""
        kept, y = [], x
        for level, down in enumerate(self.down):
            y = down(nn.functional.max_pool2d(y, 2) if level else y)
            kept.append(y)
        for up, across, other in zip(self.up, self.across, kept[-2::-1]):
            y = across(torch.cat([other, up(y)], 1))
        return x - self.last(y)


def patches(photograph: Tensor) -> Tensor:
    """A batch of random squares of a photograph (3, rows, columns)."""
    tops = torch.randint(photograph.shape[1] - SIZE, (BATCH,))
    lefts = torch.randint(photograph.shape[2] - SIZE, (BATCH,))
    return torch.stack([photograph[:, top : top + SIZE, left : left + SIZE] for top, left in zip(tops, lefts)])


def train(photograph: Tensor, steps: int) -> tuple[nn.Module, list[tuple[float, float]]]:
    """The network, and after each step the seconds since the first one and the loss."""
    torch.manual_seed(0)
    model, curve = UNet(), []
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    begin = time.perf_counter()
    for _ in range(steps):
        clean = patches(photograph)
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(clean + NOISE * torch.randn_like(clean)), clean)
        loss.backward()
        optimiser.step()
        curve.append((time.perf_counter() - begin, loss.item()))
    return model.eval(), curve


def draw(noisy: Tensor, cleaned: Tensor, curves: dict[str, list[tuple[float, float]]], path: str) -> None:
    """The two pictures, and a line for each training."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for place, (title, image) in zip(axes, (("noisy", noisy), ("denoised", cleaned))):
        place.imshow(image.permute(1, 2, 0).clamp(0, 1).numpy())
        place.set(title=title)
        place.axis("off")
    for who, curve in curves.items():
        seconds, losses = np.array(curve).T
        axes[2].semilogy(seconds, losses, label=who, linewidth=0.8)
    axes[2].set(xlabel="seconds", ylabel="mean squared error")
    axes[2].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train without the line, and with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", default="denoised.png")
    options = parser.parse_args()
    china, flower = (torch.tensor(image / 255.0).float().permute(2, 0, 1) for image in load_sample_images().images)
    curves: dict[str, list[tuple[float, float]]] = {}
    for who in ("PyTorch", "tvmconvgrad"):
        if who == "tvmconvgrad":
            cgt.enable()  # the line
        model, curves[who] = train(china, options.steps)
        print(f"{who}: {options.steps} steps in {curves[who][-1][0]:.1f} s, loss {curves[who][-1][1]:.5f}")
    clean = flower[:, : flower.shape[1] // 4 * 4, : flower.shape[2] // 4 * 4]
    noisy = clean + NOISE * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cleaned = model(noisy.unsqueeze(0))[0]
    error = [((image - clean) ** 2).mean().item() for image in (noisy, cleaned)]
    print(f"of the noise in the other photograph {error[1] / error[0]:.1%} is left; see {options.output}")
    draw(noisy, cleaned, curves, options.output)


if __name__ == "__main__":
    main()
