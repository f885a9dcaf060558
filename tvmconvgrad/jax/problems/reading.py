"""Which of the specification's sums a convolution of JAX is.

Below autodiff JAX has one operation, and writes both gradients with it. Often it can be read as several sums: a
weights' gradient also as a forward with a filter as large as the image. Programs have the batch before the channels,
and JAX's gradients of theirs read the same arrays: so a reading is taken that has it so in lhs. Of these it is the one
that moves the fewest elements, and of several such the one with the smallest filter. A kernel may read or write its
filter's taps backwards, so nothing is moved for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.jax.problems.arrangement import Arrangement, arrangement
from tvmconvgrad.jax.problems.convolution import LHS, OUT, RHS, Convolution
from tvmconvgrad.jax.problems.roles import OPERATORS, ROLES, Roles
from tvmconvgrad.jax.problems.window import Window, window
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.spec.values import MAX_SPATIAL_RANK

MAPPED = 32 << 20
"""XLA allocates a program's results and intermediate arrays at each call, by malloc, which takes larger blocks from new
pages each time (glibc's DEFAULT_MMAP_THRESHOLD_MAX). MobileNetV2's block2_expand, a forward of 77 MB, took 55 ms with
non-temporal stores, 37 without, and XLA 42; in memory that was written before, 3.7 and 7.5 ms (an Intel Xeon with
AMX)."""


@dataclass(frozen=True)
class Reading:
    """A convolution of JAX as a sum of the specification, by an operator that has its tensors in certain formats."""

    conv: Convolution
    roles: Roles
    operator: Any
    data_format: str
    filter_format: str
    is_reversed: bool = False
    """Whether JAX's program has just reversed the rhs along all its spatial axes."""

    @property
    def takes_unreversed(self) -> bool:
        """Whether the kernel reads, in place of a rhs that is reversed, what it is the reverse of."""
        return self.is_reversed and self.roles.w == RHS

    @property
    def flips_filter(self) -> bool:
        """Whether the kernel reads or writes its filter's taps from the last to the first."""
        return self.roles.is_reversed != self.takes_unreversed

    @property
    def inputs(self) -> tuple[str, str]:
        """ "lhs" and "rhs" in the order of the operator's inputs."""
        if self.roles.part is not Part.WEIGHTS:
            return LHS, RHS
        data = self.roles.x, self.roles.y
        return data[::-1] if self.operator.transposed else data

    @property
    def groups(self) -> int:
        """The groups of the sum."""
        return max(self.conv.feature_group_count, self.conv.batch_group_count)  # one of them is 1

    @computed_once
    def windows(self) -> tuple[Window, ...]:
        """The numbers of each spatial axis."""
        conv, roles = self.conv, self.roles
        sizes = zip(*(conv.spatial(tensor) for tensor in (roles.x, roles.y, roles.w)))
        numbers = zip(sizes, conv.steps(roles.y), conv.steps(roles.w), conv.padding)
        return tuple(
            window(x, y, w, stride, dilation, dilation * (w - 1) - pad if roles.is_reversed else pad)
            for (x, y, w), stride, dilation, (pad, _) in numbers
        )

    @computed_once
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """How many elements the operator's x lacks at both ends of each axis of JAX's array."""
        found = [(0, 0)] * (self.conv.rank + 2)
        for axis, each in zip(self.conv.spec(self.roles.x)[2:], self.windows):
            found[axis] = each.cut_begin, each.cut_end
        return tuple(found)

    @computed_once
    def arrangements(self) -> dict[str, Arrangement]:
        """From the order of axes of "lhs", "rhs" and "out" in JAX to the kernel's."""
        return {tensor: self._arrangement(tensor) for tensor in (LHS, RHS, OUT)}

    def _arrangement(self, tensor: str) -> Arrangement:
        conv, roles = self.conv, self.roles
        spatial = [f"X{axis}" for axis in range(conv.rank)]
        letters = dict(zip(conv.spec(tensor), (*roles.axes[tensor], *spatial)))
        is_x, is_w = tensor == roles.x, tensor == roles.w
        cut = (sum(ends) * is_x for ends in self.cuts)
        source = [(letters[axis], size - less) for axis, (size, less) in enumerate(zip(conv.shape(tensor), cut))]
        order = self.operator.filter_formats[self.filter_format] if is_w else self.data_format
        if tensor == roles.y:
            order = order.replace("C", "O")
        wanted = [name for letter in order for name in (spatial if letter == "X" else [letter])]
        of, to = self._regrouped(tensor)
        return arrangement(source, wanted, self.groups, of, to)

    def _regrouped(self, tensor: str) -> tuple[str, str]:
        """The axis that has all groups in JAX's array, and the one that has them in the kernel's; "" if it is the same.

        `vmap` writes weights' gradients of several layers side by side as one with groups of the summed batch.
        """
        roles = self.roles
        if tensor == roles.w and roles.is_reversed:
            return "C", "O"
        if tensor == LHS and roles.part is Part.WEIGHTS and self.conv.feature_group_count > 1:
            return "N", roles.axes[LHS][0]
        return "", ""

    def is_possible(self) -> bool:
        """Whether the sum is the same: x has a step of 1, elements that are read, and no groups alone."""
        conv, roles = self.conv, self.roles
        has_groups = roles.part is Part.WEIGHTS or conv.batch_group_count == 1
        has_elements = all(sum(ends) < size for ends, size in zip(self.cuts, conv.shape(roles.x)))
        return has_groups and has_elements and set(conv.steps(roles.x)) == {1}

    def cost(self) -> tuple[bool, int, int, bool]:
        """Whether lhs has its batch last, how many elements are moved besides the sum, the size of the filter, and
        whether it is flipped, which costs nothing."""
        roles = self.roles
        moved = sum(each.moved for each in self.arrangements.values())
        if self.is_reversed and not self.takes_unreversed:
            moved += prod(self.conv.shape(RHS))
        if any(map(any, self.cuts)):
            moved += prod(self.conv.shape(roles.x))
        places = dict(zip(roles.axes[LHS], self.conv.spec(LHS)))
        has_batch_last = places.pop("N") > min(places.values())
        return has_batch_last, moved, prod(self.conv.spatial(roles.w)), self.flips_filter

    def problem(self) -> Problem:
        """The specification's problem. Raises ValueError, in its words, for what no operator computes."""
        windows, conv = self.windows, self.conv
        attributes: dict[str, Any] = {
            "strides": conv.steps(self.roles.y),
            "dilations": conv.steps(self.roles.w),
            "pads_begin": tuple(each.pad_begin for each in windows),
            "pads_end": tuple(each.pad_end for each in windows),
            "groups": self.groups,
            "data_format": self.data_format,
            "filter_format": self.filter_format,
        }
        if self.operator.transposed:
            attributes["output_padding"] = tuple(each.rest for each in windows)
        first, second = (self.arrangements[name].shape for name in self.inputs)
        result = None if self.roles.part is Part.FORWARD else self.arrangements[OUT].shape
        problem: Problem = self.operator(**attributes).problem(first, second, result, conv.dtype)
        is_large = tensor_bytes(problem.output_shape, problem.output_dtype) > MAPPED
        return replace(problem, flips_filter=self.flips_filter, in_new_pages=is_large)


def read(conv: Convolution, is_reversed: bool = False) -> tuple[Reading, Problem]:
    """The best reading of a convolution, and its problem. ValueError, which says why, if no sum is the same.

    `is_reversed` says that the rhs is the reverse of something along all its spatial axes.
    """
    if not 1 <= conv.rank <= MAX_SPATIAL_RANK:
        raise ValueError(f"{conv.rank} spatial axes")
    if not all(map(prod, (conv.lhs, conv.rhs, conv.out))):
        raise ValueError("an array without elements")
    readings = [
        Reading(conv, roles, operator, data, filter, is_reversed)
        for roles in ROLES
        for operator in OPERATORS[roles.part]
        for data in DATA_FORMATS
        for filter in operator.filter_formats
    ]
    possible = [reading for reading in readings if reading.is_possible()]
    if not possible:
        raise ValueError("dilations, strides, pads and groups that no sum of the specification has together")
    best = min(possible, key=Reading.cost)
    return best, best.problem()
