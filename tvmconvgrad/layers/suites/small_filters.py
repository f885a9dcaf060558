"""Layers with few products for each element: depthwise, pointwise, and the first layers of networks."""

from __future__ import annotations

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.suites.building import Suite, square

# expansion, output channels, repeats and stride of each stage: table 2 of the paper
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _mobilenet_v2(batch: int) -> list[Layer]:
    """The first block of each stage, and the depthwise convolution of its second one."""
    layers = [square("conv1", batch, 3, 32, 224, 3, 2, 1)]
    entering, size = 32, 112
    for stage, (expansion, width, repeats, stride) in enumerate(_MOBILENET_STAGES, start=1):
        hidden = entering * expansion
        if expansion > 1:
            layers.append(square(f"block{stage}_expand", batch, entering, hidden, size, 1))
        layers.append(square(f"block{stage}_depthwise", batch, hidden, hidden, size, 3, stride, 1, groups=hidden))
        size //= stride
        layers.append(square(f"block{stage}_project", batch, hidden, width, size, 1))
        if repeats > 1:
            hidden = width * expansion
            layers.append(square(f"block{stage}b_depthwise", batch, hidden, hidden, size, 3, 1, 1, groups=hidden))
        entering = width
    return [*layers, square("conv_last", batch, 320, 1280, 7, 1)]


def _convnext_t(batch: int) -> list[Layer]:
    layers = [square("stem", batch, 3, 96, 224, 4, 4)]
    for stage, (size, width) in enumerate(((56, 96), (28, 192), (14, 384), (7, 768)), start=1):
        if stage > 1:
            layers.append(square(f"stage{stage}_halve", batch, width // 2, width, 2 * size, 2, 2))
        layers += [
            square(f"stage{stage}_depthwise", batch, width, width, size, 7, 1, 3, groups=width),
            square(f"stage{stage}_expand", batch, width, 4 * width, size, 1),
            square(f"stage{stage}_project", batch, 4 * width, width, size, 1),
        ]
    return layers


def _stem(batch: int) -> list[Layer]:
    same_upper = Layer(
        name="efficientnet_b0",
        batch=batch,
        channels=3,
        filters=32,
        input_size=(224, 224),
        kernel=(3, 3),
        strides=(2, 2),
        pads_begin=(0, 0),
        pads_end=(1, 1),
    )
    video = Layer(
        name="r3d_18",
        batch=max(1, batch // 8),
        channels=3,
        filters=64,
        input_size=(8, 112, 112),
        kernel=(3, 7, 7),
        strides=(1, 2, 2),
        pads_begin=(1, 3, 3),
        pads_end=(1, 3, 3),
    )
    return [
        square("resnet_50", batch, 3, 64, 224, 7, 2, 3),
        square("densenet_161", batch, 3, 96, 224, 7, 2, 3),
        square("alexnet", batch, 3, 64, 224, 11, 4, 2),
        square("inception_v3", batch, 3, 32, 299, 3, 2),
        same_upper,
        square("vit_b16", batch, 3, 768, 224, 16, 16),
        video,
    ]


MOBILENET_V2 = Suite(
    "mobilenet_v2",
    "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2, Inverted Residuals and Linear Bottlenecks, 2018",
    16,
    _mobilenet_v2,
)
CONVNEXT_T = Suite(
    "convnext_t", "Liu, Mao, Wu, Feichtenhofer, Darrell, Xie: A ConvNet for the 2020s, 2022", 8, _convnext_t
)
STEM = Suite(
    "stem",
    "He et al. 2015 (ResNet), Huang et al. 2016 (DenseNet), Krizhevsky 2014 (AlexNet), Szegedy et al. 2015 "
    "(Inception), Tan, Le 2019 (EfficientNet), Dosovitskiy et al. 2020 (ViT), Tran et al. 2017 (R3D)",
    8,
    _stem,
)
