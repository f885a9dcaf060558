"""Networks whose output is a picture or a volume: U-Nets, dilated convolutions, transposed ones."""

from __future__ import annotations

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.suites.building import Suite, square

_TRANSPOSED = "ConvTranspose"


def _unet(batch: int) -> list[Layer]:
    """A tile of 252x252 in place of the paper's 572x572: like that one, it stays even down to the lowest level."""
    layers = []
    size, entering, widths = 252, 1, (64, 128, 256, 512, 1024)
    for level, width in enumerate(widths, start=1):
        layers.append(square(f"down{level}_1", batch, entering, width, size, 3))
        layers.append(square(f"down{level}_2", batch, width, width, size - 2, 3))
        size, entering = (size - 4) // 2, width
    size *= 2  # the lowest level is not halved
    for level, width in reversed(list(enumerate(widths[:-1], start=1))):
        layers.append(square(f"up{level}", batch, 2 * width, width, size, 2, 2, op=_TRANSPOSED))
        layers.append(square(f"up{level}_1", batch, 2 * width, width, 2 * size, 3))
        size = 2 * size - 4
    return [*layers, square("classes", batch, 64, 2, size, 1)]


def _unet_3d(batch: int) -> list[Layer]:
    """nnU-Net's 3D U-Net on a patch of 32x32x32, four levels deep."""
    widths = (32, 64, 128, 256)
    layers = [square("down1_1", batch, 1, 32, 32, 3, 1, 1, rank=3)]
    for level, width in enumerate(widths, start=1):
        size = 32 >> (level - 1)
        if level > 1:
            layers.append(square(f"down{level}_1", batch, widths[level - 2], width, 2 * size, 3, 2, 1, rank=3))
        layers.append(square(f"down{level}_2", batch, width, width, size, 3, 1, 1, rank=3))
    for level in range(len(widths) - 1, 0, -1):
        size, width = 32 >> (level - 1), widths[level - 1]
        layers.append(square(f"up{level}", batch, widths[level], width, size // 2, 2, 2, rank=3, op=_TRANSPOSED))
        layers.append(square(f"up{level}_1", batch, 2 * width, width, size, 3, 1, 1, rank=3))
    return [*layers, square("classes", batch, 32, 3, 32, 1, rank=3)]


def _deeplab(batch: int) -> list[Layer]:
    """DeepLabv3 on a crop of 321x321, at an output stride of 16 (21x21), and of 8 (41x41) where it is named so."""
    rates = (6, 12, 18)
    grid = (2, 4, 8)
    return [
        square("block3_stride8", batch, 256, 256, 41, 3, 1, 2, dilation=2),
        square("block4_reduce", batch, 1024, 512, 21, 1),
        *(square(f"block4_dilated{d}", batch, 512, 512, 21, 3, 1, d, dilation=d) for d in grid),
        square("block4_expand", batch, 512, 2048, 21, 1),
        square("block4b_reduce", batch, 2048, 512, 21, 1),
        square("aspp_1x1", batch, 2048, 256, 21, 1),
        *(square(f"aspp_dilated{d}", batch, 2048, 256, 21, 3, 1, d, dilation=d) for d in rates),
        square("aspp_join", batch, 1280, 256, 21, 1),
    ]


def _dcgan(batch: int) -> list[Layer]:
    """The paper's channels, with kernels of 4x4; the second network judges what the first one draws."""
    widths = (1024, 512, 256, 128)
    draw = [square("draw1", batch, 100, 1024, 1, 4, op=_TRANSPOSED)]
    judge = [square("judge1", batch, 3, 128, 64, 4, 2, 1)]
    for place, width in enumerate(widths):
        size, filters = 4 << place, 3 if place == 3 else width // 2
        draw.append(square(f"draw{place + 2}", batch, width, filters, size, 4, 2, 1, op=_TRANSPOSED))
        if place < 3:
            judge.append(square(f"judge{4 - place}", batch, filters, width, 2 * size, 4, 2, 1))
    return [*draw, *sorted(judge, key=lambda layer: layer.name), square("judge5", batch, 1024, 1, 4, 4)]


UNET = Suite(
    "unet",
    "Ronneberger, Fischer, Brox: U-Net, Convolutional Networks for Biomedical Image Segmentation, 2015",
    1,
    _unet,
)
UNET_3D = Suite(
    "unet_3d",
    "Cicek, Abdulkadir, Lienkamp, Brox, Ronneberger: 3D U-Net, 2016; Isensee et al.: nnU-Net, 2021 (its channels)",
    1,
    _unet_3d,
)
DEEPLAB = Suite(
    "deeplab",
    "Chen, Papandreou, Schroff, Adam: Rethinking Atrous Convolution for Semantic Image Segmentation, 2017",
    1,
    _deeplab,
)
DCGAN = Suite(
    "dcgan",
    "Radford, Metz, Chintala: Unsupervised Representation Learning with Deep Convolutional GANs, 2015",
    16,
    _dcgan,
)
