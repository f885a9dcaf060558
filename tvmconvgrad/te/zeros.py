"""Zeros of a result, where no product contributes to the user's tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, OutputMap, Sum

Zeros: TypeAlias = "list[tuple[te.Tensor, Callable[..., OutputMap]]]"
"""Stages of zeros, and their places in the user's tensor."""

_SIDES = {Gradient.FILTER: "k", Gradient.DATA: "x", Gradient.FORWARD: "y"}


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
class Reads:
    """Elements of one axis of a result, taps or positions, and what they meet of an operand of `size` elements.

    Element i meets it where 0 <= i * step - pad + j * other < size for a 0 <= j < count: a position, or a tap.
    """

    elements: range
    step: int
    pad: int
    other: int
    count: int
    size: int

    @property
    def has_gaps(self) -> bool:
        """Whether an element meets nothing."""
        return self._reaches_beyond or self._has_holes

    def conditions(self, i: Index) -> list[Index]:
        """The conditions, where there are gaps, for an element to meet something."""
        bounds = [i * self.step >= self.pad - (self.count - 1) * self.other, i * self.step < self.pad + self.size]
        holes = [(i * self.step - self.pad) % self.other < self.size]
        return (bounds if self._reaches_beyond else []) + (holes if self._has_holes else [])

    @property
    def _reaches_beyond(self) -> bool:
        """Whether the first or the last element lies beyond all that meet anything."""
        first, last = (i * self.step - self.pad for i in (self.elements[0], self.elements[-1]))
        return first + (self.count - 1) * self.other < 0 or last >= self.size

    @property
    def _has_holes(self) -> bool:
        """Whether elements lie between two that meet something."""
        if self.count == 1 or self.other <= self.size:
            return False
        return any((i * self.step - self.pad) % self.other >= self.size for i in self.elements)


def of_taps(geometry: Geometry) -> list[Reads]:
    """What each tap meets of x, along each axis."""
    g = geometry
    axes = zip(g.k, g.dilations, g.pads_begin, g.strides, g.y, g.x)
    return [Reads(range(taps), *axis) for taps, *axis in axes]


def of_positions(geometry: Geometry) -> list[Reads]:
    """What each position meets of x, along each axis."""
    g = geometry
    axes = zip(g.y, g.strides, g.pads_begin, g.dilations, g.k, g.x)
    return [Reads(range(positions), *axis) for positions, *axis in axes]


def with_zeros(
    problem: Problem, found: Sum, output_maps: Sequence[Callable[..., OutputMap]], has_gaps: bool = False
) -> Sum:
    """A sum whose results have `places` in the user's tensor, and zeros beside them; everywhere, where there are gaps
    between them."""
    zeros = everywhere(problem) if has_gaps else beside(problem)
    return replace(
        found,
        results=(*(stage for stage, _ in zeros), *found.results),
        zeros=tuple(stage.op.name for stage, _ in zeros),
        output_maps=(*(where for _, where in zeros), *output_maps),
    )


def nothing(problem: Problem) -> Sum:
    """The result of a problem in which no product meets anything: zeros."""
    ((zero, place),) = everywhere(problem)
    return Sum(tensors.placeholders(problem), (zero,), (), (), zeros=("zero",), output_maps=(place,))


def _zeros(
    problem: Problem, shape: tuple[int, ...], begins: tuple[int, ...], name: str
) -> tuple[te.Tensor, Callable[..., OutputMap]]:
    dtype = tensors.result_dtype(problem)

    def place(*index: Index) -> OutputMap:
        return OutputMap([], [at + begin if begin else at for at, begin in zip(index, begins)])

    return te.compute(shape, lambda *_: tirx.const(0, dtype), name=name), place
