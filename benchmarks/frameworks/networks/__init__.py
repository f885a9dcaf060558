"""Networks that benchmarks/frameworks/training.py trains, as their papers have them, in PyTorch without torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from networks import mobile, others, residual, unets


class Network(NamedTuple):
    """A network, and the shape of one of its inputs."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    """Of a step that takes 0.2 to 3 s on one thread."""


NETWORKS = {
    "resnet_18": Network(residual.resnet_18, (3, 224, 224), 4),
    "resnet_50": Network(residual.resnet_50, (3, 224, 224), 4),
    "resnext_50": Network(residual.resnext_50, (3, 224, 224), 2),
    "mobilenet_v2": Network(mobile.mobilenet_v2, (3, 224, 224), 4),
    "convnext_t": Network(mobile.convnext_t, (3, 224, 224), 2),
    "unet": Network(unets.unet, (1, 128, 128), 4),
    "unet_3d": Network(unets.unet_3d, (1, 32, 32, 32), 2),
    "vgg_11": Network(others.vgg_11, (3, 224, 224), 2),
    "dcgan": Network(others.dcgan, (100, 1, 1), 16),
    "wavenet": Network(others.wavenet, (64, 2048), 2),
}
