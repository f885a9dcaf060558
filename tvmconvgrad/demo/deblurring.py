"""Finding a filter, and undoing it, by gradients of a convolution.

A filter that blurs a sharp photograph to a given blurred one, and a photograph that a given filter blurs to it, are
both found by descending the loss

    loss = 1/2 * |convolution(image, filter) - blurred|^2

The gradient of the loss with respect to the convolution's result is the residual, convolution(image, filter) - blurred.
From it ConvolutionBackpropFilters computes the gradient with respect to the filter, and ConvolutionBackpropData the one
with respect to the image. The convolution itself is in the family, too: as the data gradient of a transposed
convolution, which is linear in its input, it is ConvTransposeBackpropData, with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

import tvmconvgrad as cg
from tvmconvgrad.demo.scene import Array, camera_shake, eight_bits, photograph

FILTER_STEPS = 60
IMAGE_STEPS = 30
FILTER_BOUND = 0.01
"""The found filter's error, relative to the filter, stays below this."""
IMAGE_BOUND = 0.5
"""The sharpened photograph's error, relative to the blurred one's, stays below this."""

Linear = Callable[[Array], Array]
Progress = Callable[[str, int, int], None]
"""Called after each step with what is done, the steps so far, and the steps in all."""


@dataclass(frozen=True)
class Deblurring:
    """What went in and what came out; errors are those after each step."""

    image: Array
    blurred: Array
    sharpened: Array
    filter: Array
    found: Array
    filter_errors: list[float]
    image_errors: list[float]

    @property
    def succeeded(self) -> bool:
        """Whether both errors are below the bounds."""
        return self.filter_errors[-1] < FILTER_BOUND and self.image_errors[-1] < IMAGE_BOUND


def deblur(seed: int, progress: Progress) -> Deblurring:
    """Blur the photograph by a filter that `seed` chooses, find the filter, and sharpen the photograph with it."""
    image, true_filter = photograph(), camera_shake(seed)
    blurred = eight_bits(convolve(image, true_filter))
    inside = _inside(true_filter)

    search = watched("finding the filter", find_filter(image, blurred, true_filter.shape), FILTER_STEPS, progress)
    filters = [(found, _distance(found, true_filter) / _norm(true_filter)) for found in search]
    found = filters[-1][0]

    blur_error = _distance(blurred, image[inside])
    search = watched("sharpening the photograph", sharpen(blurred, found), IMAGE_STEPS, progress)
    images = [(sharp, _distance(sharp[inside], image[inside]) / blur_error) for sharp in search]
    sharpened = np.clip(images[-1][0], 0, 1)
    errors = ([error for _, error in filters], [error for _, error in images])
    return Deblurring(image, blurred, sharpened, true_filter, found, *errors)


def convolve(image: Array, filter_: Array) -> Array:
    """The convolution without pads: (n, y, x, c) with (k, k, c, o)."""
    return _result(cg.ConvTransposeBackpropData(**_ATTRIBUTES)(image, filter_))


def find_filter(image: Array, blurred: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Better and better filters that blur `image` to `blurred`."""
    by_filter = cg.ConvolutionBackpropFilters(filter_shape=shape, **_ATTRIBUTES)
    start = np.zeros(shape, np.float32)
    return descend(lambda f: convolve(image, f), lambda r: _result(by_filter(image, r)), blurred, start)


def sharpen(blurred: Array, filter_: Array) -> Iterator[Array]:
    """Better and better images that `filter_` blurs to `blurred`."""
    by_data = cg.ConvolutionBackpropData(**_ATTRIBUTES)
    rows, columns = filter_.shape[:2]
    # without pads the blurred image is smaller than the one it came from
    start = np.pad(blurred, [(0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)], mode="edge")
    return descend(lambda i: convolve(i, filter_), lambda r: _result(by_data(r, filter_)), blurred, start)


def descend(forward: Linear, gradient: Linear, target: Array, start: Array) -> Iterator[Array]:
    """The steps of gradient descent on 1/2 * |forward(estimate) - target|^2, for a linear `forward`.

    `gradient` takes the residual, which is the loss's gradient with respect to forward's result, back to the estimate.
    Length and momentum of each step are the best ones that there are for a linear problem: the method of conjugate
    gradients.
    """
    estimate, residual = start, forward(start) - target
    slope = gradient(residual)
    direction = -slope
    while True:
        change = forward(direction)
        length = (_norm(slope) / _norm(change)) ** 2
        estimate, residual = estimate + length * direction, residual + length * change
        previous, slope = slope, gradient(residual)
        direction = (_norm(slope) / _norm(previous)) ** 2 * direction - slope
        yield estimate


def watched(what: str, steps: Iterator[Array], count: int, progress: Progress) -> Iterator[Array]:
    """The first `count` of `steps`, each of them reported."""
    for done, estimate in enumerate(islice(steps, count), start=1):
        progress(what, done, count)
        yield estimate


_ATTRIBUTES: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0)}


def _result(value: Any) -> Array:
    array: Array = value
    return array


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array))


def _distance(one: Array, other: Array) -> float:
    return _norm(one - other)


def _inside(filter_: Array) -> tuple[slice, ...]:
    """The part of an image that its blurred one shows."""
    rows, columns = (size // 2 for size in filter_.shape[:2])
    return slice(None), slice(rows, -rows), slice(columns, -columns), slice(None)
