"""Between the tests' canonical layouts and those of the operators, by permutation of axes."""

from __future__ import annotations

import numpy as np

from tests.support.cases.convolution import Array, Shape

CONVOLUTION_FILTERS = {"XIO": "Xco", "OIX": "ocX", "OXI": "oXc", "XOI": "Xoc", "IOX": "coX"}
# the specification's two, oneDNN 3's two, and what a channels_last filter of PyTorch's has
CONV_TRANSPOSE_FILTERS = {"XIO": "Xoc", "OIX": "coX", "IOX": "ocX", "XOI": "Xco", "IXO": "oXc"}
DATA_FORMATS = ("NXC", "NCX")


def filter_formats(operator: str) -> dict[str, str]:
    """For each filter format of an operator the order of its axes: o y side, c x side (of one group), X space."""
    return CONV_TRANSPOSE_FILTERS if operator.startswith("ConvTranspose") else CONVOLUTION_FILTERS


def _permutation(canonical: str, axes: str, rank: int) -> Shape:
    """For each axis of a layout, where it is in the canonical one."""
    places: dict[str, Shape] = {letter: (i,) for i, letter in enumerate(canonical) if letter != "X"}
    places["X"] = tuple(range(2, 2 + rank))
    return tuple(place for letter in axes for place in places[letter])


def permutation(operator: str, name: str, data_format: str, filter_format: str, rank: int) -> Shape:
    """The axes of the canonical tensor x, y or w in the order of the operator's layout."""
    if name == "w":
        return _permutation("ocX", filter_formats(operator)[filter_format], rank)
    return _permutation("NCX", data_format, rank)


def from_canonical(array: Array, axes: Shape) -> Array:
    return np.ascontiguousarray(array.transpose(axes))


def to_canonical(array: Array, axes: Shape) -> Array:
    canonical: Array = array.transpose(tuple(np.argsort(axes)))
    return canonical


def shape_in(shape: Shape, axes: Shape) -> Shape:
    """A canonical shape in another layout."""
    return tuple(shape[axis] for axis in axes)


def canonical_shape(shape: Shape, axes: Shape) -> Shape:
    return tuple(shape[int(place)] for place in np.argsort(axes))
