"""Zeros of a result, where no product meets the user's tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.spec.geometry import met
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Place, Sum

Zeros: TypeAlias = "list[tuple[te.Tensor, Callable[..., Place]]]"
"""Stages of zeros, and their places in the user's tensor."""

_SIDES = {Gradient.FILTER: "k", Gradient.DATA: "y", Gradient.FORWARD: "x"}


def everywhere(problem: Problem) -> Zeros:
    """Zeros in the whole result."""
    return [_zeros(problem, problem.output_shape, (0,) * len(problem.output_shape), "zero")]


def beside(problem: Problem) -> Zeros:
    """Zeros in the result beside the part that the geometry is: along each axis before the part and behind it, there
    within the part along the axes before."""
    if problem.crop is None:
        return []
    side = _SIDES[problem.gradient]
    whole, part = getattr(problem.whole, side), getattr(problem.geometry, side)
    first = (problem.filter_axes if side == "k" else problem.data_format).index("X")
    begins, found = [0] * len(problem.output_shape), list[tuple[tuple[int, ...], tuple[int, ...]]]()
    shape = list(problem.output_shape)
    for axis, (size, begin, extent) in enumerate(zip(whole, problem.begins(side), part), first):
        for at, length in ((0, begin), (begin + extent, size - begin - extent)):
            if length:
                found.append(((*shape[:axis], length, *shape[axis + 1 :]), (*begins[:axis], at, *begins[axis + 1 :])))
        begins[axis], shape[axis] = begin, extent
    return [_zeros(problem, *each, f"zero_{number}") for number, each in enumerate(found)]


@dataclass(frozen=True)
class Meeting:
    """One axis of a result, of taps or of positions, and what its elements meet of Y.

    Element i meets it where 0 <= i * step - pad + j * other < size for a j < count, a position or a tap.
    """

    extent: int
    step: int
    pad: int
    other: int
    count: int
    size: int

    @property
    def has_gaps(self) -> bool:
        """Whether an element meets nothing."""
        if self.other <= self.size:
            return False  # after cropping the ends meet something, and so does all between them
        runs = (met(self.other, i * self.step - self.pad, self.count, self.size) for i in range(self.extent))
        return any(first >= end for first, end in runs)

    def conditions(self, i: Index) -> list[Index]:
        """The conditions, where there are gaps, for an element to meet something."""
        if not self.has_gaps:
            return []
        begin = i * self.step - self.pad
        first = tirx.max(-(begin // self.other), 0)
        return [first < self.count, first * self.other + begin < self.size]


def of_taps(geometry: Geometry) -> list[Meeting]:
    """What each tap meets, along each axis."""
    g = geometry
    return [Meeting(*axis) for axis in zip(g.k, g.dilations, g.pads_begin, g.strides, g.x, g.y)]


def of_positions(geometry: Geometry) -> list[Meeting]:
    """What each position meets, along each axis."""
    g = geometry
    return [Meeting(*axis) for axis in zip(g.x, g.strides, g.pads_begin, g.dilations, g.k, g.y)]


def with_zeros(problem: Problem, found: Sum, place: Callable[..., Place], axes: Sequence[Meeting]) -> Sum:
    """A sum whose only result has a place in the user's tensor, and zeros beside it, and in the gaps of its `axes`."""
    zeros = everywhere(problem) if any(axis.has_gaps for axis in axes) else beside(problem)
    return replace(
        found,
        results=(*(stage for stage, _ in zeros), *found.results),
        zeros=tuple(stage.op.name for stage, _ in zeros),
        places=(*(where for _, where in zeros), place),
    )


def nothing(problem: Problem) -> Sum:
    """The result of a problem in which no product meets anything: zeros."""
    ((zero, place),) = everywhere(problem)
    return Sum(tensors.placeholders(problem), (zero,), (), (), zeros=("zero",), places=(place,))


def _zeros(
    problem: Problem, shape: tuple[int, ...], begins: tuple[int, ...], name: str
) -> tuple[te.Tensor, Callable[..., Place]]:
    dtype = tensors.result_dtype(problem)

    def place(*index: Index) -> Place:
        return Place([], [at + begin if begin else at for at, begin in zip(index, begins)])

    return te.compute(shape, lambda *_: tirx.const(0, dtype), name=name), place
