"""Zeros of a result: its elements that no product contributes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Expression, Index, OutputMap

Zeros: TypeAlias = "list[tuple[te.Tensor, Callable[..., OutputMap]]]"
"""Stages of zeros, each with its map to the user's tensor."""

_SIDES = {Gradient.FILTER: "k", Gradient.DATA: "x", Gradient.FORWARD: "y"}


def everywhere(problem: Problem) -> Zeros:
    """Zeros in the whole result."""
    if 0 in problem.output_shape:
        return []
    return [_zeros(problem, problem.output_shape, (0,) * len(problem.output_shape), "zero")]


def around(problem: Problem) -> Zeros:
    """Zeros around the part of the result that the geometry covers (spec/reducing/cropping.py).

    For each axis there is a slab before the part and one behind it; along earlier axes a slab is as long as the part.
    """
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
    """Which elements of one axis of a result (taps or positions) have products with an operand of `size` elements.

    Element i reads element i * step - pad + j * inner_step of the operand, for 0 <= j < count (positions or taps), as
    far as that lies in the operand.
    """

    elements: range
    step: int
    pad: int
    inner_step: int
    count: int
    size: int

    @property
    def has_gaps(self) -> bool:
        """Whether some element reads nothing but padding."""
        return self._reaches_beyond or self._has_holes

    def conditions(self, i: Index) -> list[Index]:
        """The conditions for element `i` to read some element of the operand; none where all do."""
        bounds = [i * self.step >= self.pad - (self.count - 1) * self.inner_step, i * self.step < self.pad + self.size]
        holes = [(i * self.step - self.pad) % self.inner_step < self.size]
        return (bounds if self._reaches_beyond else []) + (holes if self._has_holes else [])

    @property
    def _reaches_beyond(self) -> bool:
        """Whether the first or the last element reads nothing but padding."""
        first, last = (i * self.step - self.pad for i in (self.elements[0], self.elements[-1]))
        return first + (self.count - 1) * self.inner_step < 0 or last >= self.size

    @property
    def _has_holes(self) -> bool:
        """Whether an element between two that read the operand does not."""
        if self.count == 1 or self.inner_step <= self.size:
            return False
        return any((i * self.step - self.pad) % self.inner_step >= self.size for i in self.elements)


def of_taps(geometry: Geometry) -> list[Reads]:
    """What each tap reads of x, along each axis."""
    g = geometry
    axes = zip(g.k, g.dilations, g.pads_begin, g.strides, g.y, g.x)
    return [Reads(range(k), step, pad, inner_step, y, x) for k, step, pad, inner_step, y, x in axes]


def of_positions(geometry: Geometry) -> list[Reads]:
    """What each position of y reads of x, along each axis."""
    g = geometry
    axes = zip(g.y, g.strides, g.pads_begin, g.dilations, g.k, g.x)
    return [Reads(range(y), step, pad, inner_step, k, x) for y, step, pad, inner_step, k, x in axes]


def read_by(axes: Sequence[Reads], index: Sequence[Index]) -> list[Index]:
    """The conditions for the element at an `index` to read some element of the operand along each axis."""
    return [condition for axis, i in zip(axes, index) for condition in axis.conditions(i)]


def with_zeros(
    problem: Problem, found: Expression, output_maps: Sequence[Callable[..., OutputMap]], has_gaps: bool = False
) -> Expression:
    """`found` with these `output_maps` of its results, and with zeros around them; with zeros everywhere, written
    before the results, where they leave gaps. A kernel that accumulates adds none."""
    zeros = [] if problem.epilogue.accumulate else everywhere(problem) if has_gaps else around(problem)
    return replace(
        found,
        results=(*(stage for stage, _ in zeros), *found.results),
        zeros=tuple(stage.op.name for stage, _ in zeros),
        output_maps=(*(where for _, where in zeros), *output_maps),
    )


def nothing(problem: Problem) -> Expression:
    """The result of a problem that has no products: zeros."""
    return with_zeros(problem, Expression(tensors.placeholders(problem), (), (), ()), (), has_gaps=True)


def _zeros(
    problem: Problem, shape: tuple[int, ...], begins: tuple[int, ...], name: str
) -> tuple[te.Tensor, Callable[..., OutputMap]]:
    dtype = tensors.result_dtype(problem)

    def output_map(*index: Index) -> OutputMap:
        return OutputMap([], [at + begin if begin else at for at, begin in zip(index, begins)])

    return te.compute(shape, lambda *_: tirx.const(0, dtype), name=name), output_map
