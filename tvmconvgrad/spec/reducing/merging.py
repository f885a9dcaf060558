"""Merges neighbouring spatial axes into one, where no tap moves along them, or the filter covers the second one.

Along an axis with one tap, stride 1 and no padding, a convolution does the same at every position, as it does for every
image of the batch. If such an axis follows another one, or the batch, in memory, the two become one longer axis. So a
1x1 convolution in NXC is a matrix product with one long M axis, whatever the size of its images.

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


def merged(problem: Problem) -> Problem:
    """`problem` with as few spatial axes as its layout allows, at least one; its tensors have the same memory."""
    if _covers_all(problem):
        return _matrix_product(problem)
    problem = replace(problem, geometry=_with_covered_joined(problem.geometry, problem.data_format == "NXC"))
    geometry = problem.geometry
    runs = _runs(geometry)
    batch: list[int] = []
    if problem.data_format == "NXC" and _is_still(geometry, runs[0][0]):
        # The batch joins the first axes: as one more of them if there are no others, else they join the batch.
        batch = list(runs.pop(0))
    if runs:
        images = geometry.batch * prod(geometry.y[axis] for axis in batch)
        return replace(problem, geometry=_with_axes(geometry, images, runs))
    positions = geometry.batch * prod(geometry.y)
    flat = _with_axes(geometry, 1, [batch])
    return replace(problem, geometry=replace(flat, y=(positions,), x=(positions,)))


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
    def is_covered(self) -> bool:
        """Whether a single position reads all elements, one after the other."""
        return self.y == 1 and self.k == self.x and self.pad_begin == self.pad_end == 0 and 1 in (self.k, self.dilation)

    def joined(self, covered: int) -> _Axis:
        """This axis joined with the next one, which has `covered` elements, all covered by the filter."""
        x, k, stride = (number * covered for number in (self.x, self.k, self.stride))
        return _Axis(self.y, x, k, stride, 1, self.pad_begin * covered, self.pad_end * covered)


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


def _with_covered_joined(geometry: Geometry, joins_batch: bool) -> Geometry:
    """`geometry` with each axis that the filter covers joined to the one before it, which may be the batch."""
    images = _Axis(geometry.batch, geometry.batch, 1, 1, 1, 0, 0)
    found = [images] if joins_batch else []
    for axis in _axes(geometry):
        if axis.is_covered and found and 1 in (found[-1].k, found[-1].dilation):
            found[-1] = found[-1].joined(axis.k)
        else:
            found.append(axis)
    has_joined_batch = joins_batch and (found[0] != images or len(found) == 1)
    axes = found[1:] if joins_batch and not has_joined_batch else found
    sizes: dict[str, Any] = dict(zip(_NAMES, zip(*axes)))
    return replace(geometry, batch=1 if has_joined_batch else geometry.batch, **sizes)


def _is_still(geometry: Geometry, axis: int) -> bool:
    """Whether no tap moves along an axis."""
    numbers = (geometry.k, geometry.strides, geometry.pads_begin, geometry.pads_end)
    return [number[axis] for number in numbers] == [1, 1, 0, 0] and geometry.y[axis] == geometry.x[axis]


def _runs(geometry: Geometry) -> list[list[int]]:
    """The axes, with neighbours along which no tap moves together."""
    runs: list[list[int]] = []
    for axis in range(geometry.rank):
        if runs and _is_still(geometry, axis) and _is_still(geometry, axis - 1):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _with_axes(geometry: Geometry, batch: int, runs: Sequence[Sequence[int]]) -> Geometry:
    """Each run of axes as one; only runs of a single axis have numbers other than 1 and 0."""
    firsts = [run[0] for run in runs]
    sizes: dict[str, Any] = {
        name: tuple(prod(getattr(geometry, name)[axis] for axis in run) for run in runs) for name in ("y", "x")
    }
    for name in ("k", "strides", "dilations", "pads_begin", "pads_end"):
        sizes[name] = tuple(getattr(geometry, name)[axis] for axis in firsts)
    return replace(geometry, batch=batch, **sizes)
