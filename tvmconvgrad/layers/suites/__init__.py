"""Suites: the distinct layers of published networks, in sizes that one core computes in milliseconds.

One gradient takes at most about 5 GFLOP: where a network's own batch or picture is larger, the suite's is smaller.
"""

from __future__ import annotations

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.suites import classifiers, pictures, small_filters, sounds
from tvmconvgrad.layers.suites.building import Suite, distinct
from tvmconvgrad.spec.values import nearest, parse_int, show

SUITES: dict[str, Suite] = {
    entry.name: entry
    for entry in (
        classifiers.RESNET_50,
        classifiers.RESNEXT_50,
        classifiers.VGG_19,
        small_filters.MOBILENET_V2,
        small_filters.CONVNEXT_T,
        small_filters.STEM,
        pictures.UNET,
        pictures.UNET_3D,
        pictures.DEEPLAB,
        pictures.DCGAN,
        sounds.WAVENET,
    )
}


def suite(name: str, batch: int | None = None) -> list[Layer]:
    """The layers of a suite, with its own batch size or this one.

    Raises ValueError for an unknown name, and ValueError or TypeError unless `batch` is a positive int.
    """
    if name not in SUITES:
        raise ValueError(f"suite: {show(name)} is unknown{nearest(name, SUITES)}, expected one of {', '.join(SUITES)}")
    found = SUITES[name]
    return distinct(found.layers(found.batch if batch is None else parse_int("batch", batch, low=1)))


__all__ = ["SUITES", "Suite", "suite"]
