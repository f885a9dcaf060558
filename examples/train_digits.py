"""Train a small ResNet on scikit-learn's handwritten digits, with PyTorch's kernels and with this package's.

    pip install -e ".[torch,examples]"
    python examples/train_digits.py

Prints for each the accuracy on digits that were held back, and the seconds that training took, then who computed what.
The first run also builds kernels; run it twice.
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tvmconvgrad.torch as cgt

BATCH, HELD_BACK = 64, 360


class Block(nn.Module):
    """Two convolutions beside what they add to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the shape of `x`."""
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


def make_model() -> nn.Module:
    """Images of 8x8 pixels to ten scores."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        Block(32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        Block(64),
        Block(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def train(images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """A model that has seen all images so many times."""
    model = make_model()
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def main() -> None:
    """Train without the line, and with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pytorch", "tvmconvgrad"), help="instead of both")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images / 16.0).float().unsqueeze(1)[order]
    labels = torch.tensor(digits.target)[order]
    for who in ("pytorch", "tvmconvgrad"):
        if options.only not in (None, who):
            continue
        if who == "tvmconvgrad":
            cgt.enable()  # the line
        begin = time.perf_counter()
        model = train(images[HELD_BACK:], labels[HELD_BACK:], options.epochs)
        seconds = time.perf_counter() - begin
        with torch.no_grad():
            right = (model(images[:HELD_BACK]).argmax(1) == labels[:HELD_BACK]).float().mean().item()
        print(f"{who}: {right:.1%} of {HELD_BACK} digits right, {seconds:.1f} s")
    if options.only != "pytorch":
        print(cgt.report())


if __name__ == "__main__":
    main()
