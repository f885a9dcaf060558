"""Merges neighbouring spatial axes into one, where no tap moves along them.

Along an axis with one tap, stride 1 and no padding, a convolution does the same at every position, as it does for every
image of the batch. If such an axis follows another one, or the batch, in memory, the two become one longer axis. So a
1x1 convolution in NXC is a matrix product with one long M axis, whatever the size of its images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.problem import Problem


def merged(problem: Problem) -> Problem:
    """`problem` with as few spatial axes as its layout allows, at least one; its tensors have the same memory."""
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
