"""Gives a problem's tensors the order of axes that kernels are best for, where their memory has several.

A tensor lies in memory the same wherever an axis of a single element stands in its order. So a filter with one tap has
the same memory in OIX as in OXI, and images of one position have the same in NCX as in NXC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.problem import Problem

_FILTER_AXES = ("XCO", "OXC", "XOC", "OCX", "COX")
"""The orders of a filter's axes that layouts name. Of those with the same memory, the first one that ends in an axis of
several elements is taken, since kernels read vectors along the last axis; if none does, the first one."""


def in_best_order(problem: Problem) -> Problem:
    """`problem` with the best of the orders that its tensors' memory has; the sum and the memory stay the same."""
    geometry = problem.geometry
    sizes = {"X": prod(geometry.k), "C": geometry.c // geometry.groups, "O": geometry.o}
    return replace(
        problem,
        data_format=_data_format(geometry) or problem.data_format,
        filter_axes=_filter_axes(problem.filter_axes, sizes),
        flips_filter=problem.flips_filter and sizes["X"] > 1,
    )


def _data_format(geometry: Geometry) -> str | None:
    """The layout to name where NXC and NCX have the same memory; None where they differ. Images of one channel are rows
    of positions, along which NCX's kernels have vectors; images of one position are rows of channels."""
    if geometry.c == geometry.o == 1:
        return "NCX"
    if 1 in (geometry.c, prod(geometry.x)) and 1 in (geometry.o, prod(geometry.y)):
        return "NXC"
    return None


def _filter_axes(axes: str, sizes: Mapping[str, int]) -> str:
    """The one of `_FILTER_AXES` that is taken of those with the memory of `axes`."""
    same = [other for other in _FILTER_AXES if _long(other, sizes) == _long(axes, sizes)]
    return next((other for other in same if sizes[other[-1]] > 1), same[0])


def _long(axes: str, sizes: Mapping[str, int]) -> str:
    """The axes that have more than one element, in their order."""
    return "".join(axis for axis in axes if sizes[axis] > 1)
