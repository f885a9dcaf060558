"""Merges neighbouring spatial axes into one, where no tap moves along the second one, or the filter covers it.

Along an axis with one tap, stride 1 and no padding, a convolution does the same at every position. If such an axis
follows another one, or in NXC the batch, in memory, and that one has stride 1, the two become one longer axis: a tap
moves along it by as many elements as the second axis has, times the first one's dilation. So a 1x1 convolution in NXC
is a matrix product with one long M axis, whatever the size of its images.

Where taps move along the first axis, as in a 7x1 convolution, both forms have their merits, and a rule chooses: tiles
of long rows fill vectors and tile registers, but a tile of one short row may leave out a tap that reads padding.

An axis that the filter covers has a single position. It joins the axis before it, or the batch: that
axis' elements, taps and stride are multiplied by the covered axis' number of elements. So a filter as large as the
images, in NXC, moves along a single axis from image to image, and images are the positions of M. One image at a time,
DCGAN's draw1 read the filter once for each of its 16 images.

A filter as large as the images makes a matrix product, whose columns are the elements of x, channels and positions
alike. They become channels of a single position where the filter has them in the same order as x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.problem import Problem


def merged(problem: Problem, along_taps: bool = False) -> Problem:
    """`problem` with as few spatial axes as its layout allows, at least one; its tensors have the same memory. An axis
    joins one along which taps move only if `along_taps`."""
    if _covers_all(problem):
        return _matrix_product(problem)
    geometry = problem.geometry
    if problem.data_format == "NCX":
        return replace(problem, geometry=_with_axes(geometry, geometry.batch, _joined(_axes(geometry), along_taps)))
    images = _Axis(geometry.batch, geometry.batch, 1, 1, 1, 0, 0)
    first, *axes = _joined([images, *_axes(geometry)], along_taps)
    if axes and first.is_still:
        batch = first.x
    else:
        batch, axes = 1, [first, *axes]
    return replace(problem, geometry=_with_axes(geometry, batch, axes))


class _Axis(NamedTuple):
    """The numbers of an axis, in the order of `_NAMES`."""

    y: int
    x: int
    k: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int

    @property
    def is_still(self) -> bool:
        """Whether no tap moves along it."""
        return (self.k, self.stride, self.pad_begin, self.pad_end) == (1, 1, 0, 0) and self.y == self.x

    @property
    def is_covered(self) -> bool:
        """Whether a single position reads all elements, one after the other."""
        return self.y == 1 and self.k == self.x and self.pad_begin == self.pad_end == 0 and 1 in (self.k, self.dilation)

    def with_next(self, axis: _Axis, along_taps: bool) -> _Axis | None:
        """This axis with the next one, as one axis; None if they cannot be one."""
        if axis.is_covered and 1 in (self.k, self.dilation):
            x, k, stride = (number * axis.k for number in (self.x, self.k, self.stride))
            return _Axis(self.y, x, k, stride, 1, self.pad_begin * axis.k, self.pad_end * axis.k)
        if axis.is_still and (self.is_still or (along_taps and self.stride == 1)):
            y, x, dilation, *pads = (
                number * axis.x for number in (self.y, self.x, self.dilation, self.pad_begin, self.pad_end)
            )
            return _Axis(y, x, self.k, 1, dilation if self.k > 1 else 1, *pads)
        return None


_NAMES = ("y", "x", "k", "strides", "dilations", "pads_begin", "pads_end")


def _covers_all(problem: Problem) -> bool:
    """Whether the filter covers the images, and has the elements of x in the same order as x. A bias by the channels of
    x, and a filter with its taps reversed, would tell positions from channels."""
    geometry, epilogue = problem.geometry, problem.epilogue
    order = problem.data_format.replace("N", "")
    same_order = order in problem.filter_axes and (geometry.groups == 1 or order == "CX")
    has_bias = (epilogue.bias or epilogue.bias_delta) and problem.bias_shape == (geometry.c,)
    covers = all(axis.is_covered for axis in _axes(geometry))
    return covers and prod(geometry.x) > 1 and same_order and not has_bias and not problem.flips_filter


def _matrix_product(problem: Problem) -> Problem:
    """`problem`, whose filter covers the images, with all elements of x as channels of one position, and images as
    positions."""
    geometry, positions, none = problem.geometry, (problem.geometry.batch,), (0,)
    sizes: dict[str, Any] = dict.fromkeys(("k", "strides", "dilations"), (1,)) | {
        "pads_begin": none,
        "pads_end": none,
        "x": positions,
        "y": positions,
        "batch": 1,
    }
    columns = replace(geometry, c=geometry.c * prod(geometry.x), **sizes)
    axes = "XCO" if problem.filter_axes.endswith("O") else "OXC"
    return replace(problem, geometry=columns, data_format="NXC", filter_axes=axes)


def _axes(geometry: Geometry) -> list[_Axis]:
    return [_Axis(*numbers) for numbers in zip(*(getattr(geometry, name) for name in _NAMES))]


def _joined(axes: Sequence[_Axis], along_taps: bool) -> list[_Axis]:
    """The axes, each together with those behind it that may join it."""
    found: list[_Axis] = []
    for axis in axes:
        both = found[-1].with_next(axis, along_taps) if found else None
        found[-1:] = [*found[-1:], axis] if both is None else [both]
    return found


def _with_axes(geometry: Geometry, batch: int, axes: Sequence[_Axis]) -> Geometry:
    """`geometry` with another batch and other axes."""
    sizes: dict[str, Any] = dict(zip(_NAMES, zip(*axes)))
    return replace(geometry, batch=batch, **sizes)
