"""Layouts: which axis of a shape means what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvmconvgrad.spec.values import Ints, Shape, check_count, parse_ints

# The filter's axes in the letters of Geometry: C is c//groups long, O is o long. Both families have the same orders, so
# that a forward, which is a data gradient of the other one, has a name for each. OXC is what a filter of PyTorch's has
# in memory where it is channels_last.
CONVOLUTION_FILTERS = {"XIO": "XCO", "OIX": "OCX", "OXI": "OXC", "XOI": "XOC", "IOX": "COX"}
CONV_TRANSPOSE_FILTERS = {"XIO": "XOC", "OIX": "COX", "IOX": "OCX", "XOI": "XCO", "IXO": "OXC"}
DEFAULT_FILTERS = {"NXC": "XIO", "NCX": "OIX"}
"""The filter's layout that goes with each layout of data, where a layer's or a variant's is not given. Beside a forward
ConvTranspose it is `other_name` of that, which Convolution's data gradient takes."""
FILTER_FORMATS = tuple(CONVOLUTION_FILTERS | CONV_TRANSPOSE_FILTERS)
"""All names of layouts of a filter."""

_MEANINGS = {"N": "batch", "C": "channels", "X": "spatial", "I": "input channels", "O": "output channels"}


def make_shape(axes: str, sizes: Mapping[str, int], spatial: Iterable[int]) -> Shape:
    """Return the shape with `spatial` at the X of `axes` and sizes[letter] at every other letter."""
    shape: list[int] = []
    for letter in axes:
        shape.extend(spatial if letter == "X" else (sizes[letter],))
    return tuple(shape)


def filter_formats(transposed: bool) -> dict[str, str]:
    """The filter's layouts of Convolution or, if `transposed`, of ConvTranspose: their axes by their names."""
    return CONV_TRANSPOSE_FILTERS if transposed else CONVOLUTION_FILTERS


def other_name(filter_format: str, transposed: bool) -> str:
    """The name of the same layout at Convolution if `transposed` is what the given name belongs to, and vice versa."""
    names = {axes: name for name, axes in filter_formats(not transposed).items()}
    return names[filter_formats(transposed)[filter_format]]


@dataclass(frozen=True)
class Argument:
    """A shape, with its layout and the name by which the caller knows it."""

    name: str
    shape: Shape
    format: str

    def position(self, letter: str) -> int:
        """Return the axis of `letter`; for X the first of the spatial axes."""
        place = self.format.index(letter)
        return place + len(self.shape) - 3 if place > self.format.index("X") else place

    def __getitem__(self, letter: str) -> int:
        """Return the size of an axis, in the letters of the layout."""
        return self.shape[self.position(letter)]

    @property
    def spatial(self) -> Shape:
        """The spatial sizes."""
        first = self.position("X")
        return self.shape[first : first + len(self.shape) - 2]

    def misfit(self, letter: str, expectation: str, spatial_axis: int = 0) -> ValueError:
        """Return the error for one axis of this argument that is not as expected."""
        axis = self.position(letter) + spatial_axis
        return ValueError(
            f"{self.name}: shape {self.shape} does not fit: axis {axis} ({_MEANINGS[letter]}, {self.format}) "
            f"is {self.shape[axis]}, {expectation}"
        )


def parse_argument(name: str, value: Ints, layout: str, rank: int) -> Argument:
    """Return a caller's shape in `layout`, with the number of entries that `rank` spatial axes need."""
    shape = parse_ints(name, value, low=0)
    check_count(name, shape, rank + 2, f"for {layout} with {rank} spatial axes, one per entry of strides")
    return Argument(name, shape, layout)
