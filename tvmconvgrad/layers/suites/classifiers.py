"""Classifiers of pictures of 224x224 in 3x3 and 1x1 convolutions of many channels."""

from __future__ import annotations

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.suites.building import Suite, square


def _resnet_50(batch: int) -> list[Layer]:
    layers = [square("conv1", batch, 3, 64, 224, 7, 2, 3)]
    entering = 64
    for stage, (size, width) in enumerate(((56, 64), (28, 128), (14, 256), (7, 512)), start=2):
        # the paper's first block of a stage halves the picture in its first 1x1 convolution
        stride, before = (1, size) if stage == 2 else (2, 2 * size)
        layers += [
            square(f"res{stage}a_branch1", batch, entering, 4 * width, before, 1, stride),
            square(f"res{stage}a_branch2a", batch, entering, width, before, 1, stride),
            square(f"res{stage}a_branch2b", batch, width, width, size, 3, 1, 1),
            square(f"res{stage}a_branch2c", batch, width, 4 * width, size, 1),
            square(f"res{stage}b_branch2a", batch, 4 * width, width, size, 1),
        ]
        entering = 4 * width
    return layers


def _resnext_50(batch: int) -> list[Layer]:
    """The grouped convolutions and what follows them; the others are of ResNet-50's kind."""
    layers = []
    for stage, (size, width) in enumerate(((56, 128), (28, 256), (14, 512), (7, 1024)), start=2):
        before = size if stage == 2 else 2 * size
        if stage > 2:
            layers.append(square(f"conv{stage}a_grouped", batch, width, width, before, 3, 2, 1, groups=32))
        layers.append(square(f"conv{stage}b_grouped", batch, width, width, size, 3, 1, 1, groups=32))
        layers.append(square(f"conv{stage}a_expand", batch, width, 2 * width, size, 1))
    return layers


def _vgg_19(batch: int) -> list[Layer]:
    layers = []
    entering = 3
    for stage, (size, width) in enumerate(((224, 64), (112, 128), (56, 256), (28, 512), (14, 512)), start=1):
        layers.append(square(f"conv{stage}_1", batch, entering, width, size, 3, 1, 1))
        layers.append(square(f"conv{stage}_2", batch, width, width, size, 3, 1, 1))
        entering = width
    return layers


RESNET_50 = Suite("resnet_50", "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015", 8, _resnet_50)
RESNEXT_50 = Suite(
    "resnext_50",
    "Xie, Girshick, Dollar, Tu, He: Aggregated Residual Transformations for Deep Neural Networks, 2016 (32x4d)",
    8,
    _resnext_50,
)
VGG_19 = Suite(
    "vgg_19",
    "Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, 2014",
    1,
    _vgg_19,
)
