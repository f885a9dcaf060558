"""The operands of the sums: the user's tensors in one order of axes, zero outside, in f32.

A user's tensor comes in one of many layouts and three types. Each sum reads it through one stage that

* puts its axes in the canonical order: (n, g, c, *x), (n, g, o, *y) or (g, *k, c, o);
* is zero outside of the tensor: at the convolution's padding, and in channels and groups beyond the tensor's. Zeros add
  nothing to a sum, so a stage may have any extents;
* converts it to f32, the type in which all sums are accumulated. That is exact.

So the sums contain no layouts and no types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx

from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import ACCUMULATOR, BITS, Index, Stage, data_index, filter_index, group_sizes, within
from tvmconvgrad.te.views import PaddedView


@dataclass(frozen=True)
class PaddedData:
    """A data tensor, `side` "x" or "y" of the convolution: elements (n, g, channel of the group, *space)."""

    problem: Problem
    side: str
    tensor: Stage
    extents: tuple[int, int]
    """(groups, channels of a group), at least the tensor's."""
    views: Sequence[PaddedView]
    """What each spatial axis is of the tensor's."""
    dtype: str = ACCUMULATOR
    """f32, or `BITS`: bf16 stays as it is."""

    def element(
        self, n: Index, g: Index, c: Index, space: Sequence[Index], scaled: Callable[[Index], Index] | None = None
    ) -> Index:
        """The element at an index; those of the tensor are `scaled`."""
        geometry = self.problem.geometry
        channels = group_sizes(geometry)["xy".index(self.side)]
        inside = within(g, geometry.groups, self.extents[0]) + within(c, channels, self.extents[1])
        inside += [condition for i, view in zip(space, self.views) for condition in view.inside(i)]
        where = [view.moved(i) - view.shift for i, view in zip(space, self.views)]
        index = data_index(self.problem, self.side, n, g * channels + c, where)
        return guarded(inside, lambda: self.tensor(*index), self.dtype, scaled)

    def stage(self, name: str) -> Stage:
        """All elements."""
        shape = (self.problem.geometry.batch, *self.extents, *(view.extent for view in self.views))
        return te.compute(shape, lambda n, g, c, *space: self.element(n, g, c, space), name=name)


def padded_filter(
    problem: Problem, tensor: Stage, extents: tuple[int, int, int], name: str, dtype: str = ACCUMULATOR
) -> Stage:
    """The filter as a stage (g, *k, c of the group, o of the group), with `extents` (g, c, o) that are at least the
    tensor's; `dtype` as in `PaddedData`."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)

    def element(g: Index, *rest: Index) -> Index:
        *k, c, o = rest
        sizes = zip((g, c, o), (geometry.groups, c_group, o_group), extents)
        inside = [condition for each in sizes for condition in within(*each)]
        index = filter_index(problem, k, c, g * o_group + o)
        return guarded(inside, lambda: tensor(*index), dtype)

    groups, c_extent, o_extent = extents
    return te.compute((groups, *geometry.k, c_extent, o_extent), element, name=name)


def guarded(
    inside: Sequence[Index],
    value: Callable[[], Index],
    dtype: str = ACCUMULATOR,
    scaled: Callable[[Index], Index] | None = None,
) -> Index:
    """`value`, `scaled`, where every condition holds, else zero; in f32, or as the bits of bf16."""
    taken = tirx.reinterpret(dtype, value()) if dtype == BITS else value().astype(dtype)
    if scaled is not None:
        taken = scaled(taken)
    return tirx.if_then_else(tirx.all(*inside), taken, tirx.const(0, dtype)) if inside else taken
