"""The three sums of a convolution in float64, one kernel tap after the other: slow, plain, and the tests' own.

w[o, c, k] = sum over n, x of  y[n, c, x * s - pads_begin + k * d] * x[n, o, x]
y[n, c, y] = sum over o, k of  x[n, o, x] * w[o, c, k]   where y = x * s - pads_begin + k * d
x[n, o, x] = sum over c, k of  y[n, c, x * s - pads_begin + k * d] * w[o, c, k]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.convolution import Array, Convolution, Shape, Tensors

Float64 = NDArray[np.float64]


def gradient(convolution: Convolution, result: str, tensors: Tensors) -> Float64:
    """The result y, x or w from the two other tensors, in float64."""
    conv = convolution
    given = {name: _grouped(conv, name, array.astype(np.float64)) for name, array in tensors.items()}
    if result == "y":
        padded = np.zeros(_padded_shape(conv))
        x = _flat(given["x"])
        for tap, window in _windows(conv):
            met = np.swapaxes(given["w"][tap], 1, 2) @ x
            padded[window] += met.reshape(padded[window].shape)
        y: Float64 = padded[_unpadded(conv)].reshape(conv.shapes["y"])
        return y
    padded = _padded(conv, given["y"])
    out = np.zeros(_grouped_shape(conv, result))
    for tap, window in _windows(conv):
        met = _flat(padded[window])
        if result == "w":
            out[tap] = (_flat(given["x"]) @ np.swapaxes(met, 2, 3)).sum(axis=0)
        else:
            out += (given["w"][tap] @ met).reshape(out.shape)
    return out.reshape(conv.shapes[result])


def _windows(conv: Convolution) -> Iterator[tuple[Any, Any]]:
    """The indices of each tap, in w, and of the elements that it meets, one for each of x, in the padded y."""
    for tap in itertools.product(*map(range, conv.k)):
        axes = zip(tap, conv.x, conv.strides, conv.dilations, strict=True)
        window = (slice(t * d, t * d + s * (x - 1) + 1 if x else t * d, s) for t, x, s, d in axes)
        yield (..., *tap), (..., *window)


def _padded_shape(conv: Convolution) -> Shape:
    reach = zip(conv.x, conv.y, conv.strides, conv.extents, conv.pads_begin, strict=True)
    spatial = (max(b + y, s * (x - 1) + e) for x, y, s, e, b in reach)
    return (conv.batch, conv.groups, conv.c // conv.groups, *spatial)


def _unpadded(conv: Convolution) -> Any:
    return (..., *(slice(b, b + y) for b, y in zip(conv.pads_begin, conv.y, strict=True)))


def _padded(conv: Convolution, y: Float64) -> Float64:
    padded = np.zeros(_padded_shape(conv))
    padded[_unpadded(conv)] = y
    return padded


def _grouped_shape(conv: Convolution, name: str) -> Shape:
    g = conv.groups
    if name == "w":
        return (g, conv.o // g, conv.c // g, *conv.k)
    channels, spatial = (conv.c, conv.y) if name == "y" else (conv.o, conv.x)
    return (conv.batch, g, channels // g, *spatial)


def _grouped(conv: Convolution, name: str, array: Float64) -> Float64:
    return array.reshape(_grouped_shape(conv, name))


def _flat(array: Array) -> Float64:
    """With one axis for all spatial ones."""
    n, g, c, *spatial = array.shape
    return np.ascontiguousarray(array, dtype=np.float64).reshape(n, g, c, int(np.prod(spatial)))
