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

from tests.support.cases.convolution import Array, Convolution, Shape, Tensors

Float64 = NDArray[np.float64]


def gradient(convolution: Convolution, result: str, tensors: Tensors) -> Float64:
    """The result y, x or w from the two other tensors, in float64."""
    conv = convolution
    given = {name: _grouped(conv, name, array.astype(np.float64)) for name, array in tensors.items()}
    out = np.zeros(_grouped_shape(conv, result))
    with np.errstate(invalid="ignore"):  # of infinities
        for tap, x, y in _meetings(conv):
            if result == "w":
                out[tap] = (_flat(given["y"][y]) @ np.swapaxes(_flat(given["x"][x]), 2, 3)).sum(axis=0)
            elif result == "x":
                out[x] += (np.swapaxes(given["w"][tap], 1, 2) @ _flat(given["y"][y])).reshape(out[x].shape)
            else:
                out[y] += (given["w"][tap] @ _flat(given["x"][x])).reshape(out[y].shape)
    return out.reshape(conv.shapes[result])


def met(convolution: Convolution, result: str) -> NDArray[np.bool_]:
    """Which elements of the result any product meets."""
    ones = {name: np.ones(shape) for name, shape in convolution.shapes.items() if name != result}
    found: NDArray[np.bool_] = gradient(convolution, result, ones) != 0
    return found


def _meetings(conv: Convolution) -> Iterator[tuple[Any, Any, Any]]:
    """The indices of each tap in w, and of the elements of y and of x that it brings together; no pads."""
    for tap in itertools.product(*map(range, conv.k)):
        axes = [_met_by(conv, axis, place) for axis, place in enumerate(tap)]
        if all(y.start < y.stop for _, y in axes):
            ys, xs = zip(*axes)
            yield (..., *tap), (..., *ys), (..., *xs)


def _met_by(conv: Convolution, axis: int, place: int) -> tuple[slice, slice]:
    """Along one axis, where the elements of y and of x are that one tap brings together, however far it reaches."""
    stride, shift = conv.strides[axis], place * conv.dilations[axis] - conv.pads_begin[axis]
    first = max(0, -(shift // stride))
    last = min(conv.y[axis] - 1, (conv.x[axis] - 1 - shift) // stride)
    begin, end = (stride * y + shift for y in (first, last))
    return slice(begin, end + 1, min(stride, end - begin) or 1), slice(first, last + 1)


def _grouped_shape(conv: Convolution, name: str) -> Shape:
    g = conv.groups
    if name == "w":
        return (g, conv.o // g, conv.c // g, *conv.k)
    channels, spatial = (conv.c, conv.x) if name == "x" else (conv.o, conv.y)
    return (conv.batch, g, channels // g, *spatial)


def _grouped(conv: Convolution, name: str, array: Float64) -> Float64:
    return array.reshape(_grouped_shape(conv, name))


def _flat(array: Array) -> Float64:
    """With one axis for all spatial ones."""
    n, g, c, *spatial = array.shape
    return np.ascontiguousarray(array, dtype=np.float64).reshape(n, g, c, int(np.prod(spatial)))
