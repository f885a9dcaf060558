"""A photograph, and a camera that shakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import cbook
from PIL import Image

Array = npt.NDArray[np.float32]


def photograph() -> Array:
    """Grace Hopper, photographed for the US Navy (public domain; comes with matplotlib): (colours, rows, columns, 1).

    The colours are a batch: each is blurred alike. Values lie between 0 and 1.
    """
    with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[..., np.newaxis])


def camera_shake(seed: int, size: int = 5) -> Array:
    """The blur of a camera that moved while the shutter was open: (size, size, 1, 1), its sum is 1."""
    rng = np.random.default_rng(seed)
    middle = (size - 1) / 2
    place, speed = np.full(2, middle), rng.normal(scale=0.1, size=2)
    shake = np.zeros((size, size))
    for _ in range(60):
        speed += rng.normal(scale=0.06, size=2) - 0.02 * (place - middle)
        place = np.clip(place + speed, 0, size - 1)
        _add_light(shake, place)
    return np.asarray(shake / shake.sum(), np.float32).reshape(size, size, 1, 1)


def eight_bits(image: Array) -> Array:
    """What a file keeps of an image: 256 levels."""
    return np.asarray(np.round(np.clip(image, 0, 1) * 255) / 255, np.float32)


def _add_light(shake: npt.NDArray[np.float64], place: npt.NDArray[Any]) -> None:
    """One moment's light, shared by the four pixels around a place."""
    row, column = np.minimum(place.astype(int), np.array(shake.shape) - 2)
    down, right = place - (row, column)
    shake[row : row + 2, column : column + 2] += np.outer((1 - down, down), (1 - right, right))
