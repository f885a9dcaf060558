"""What a schedule asks of an expression."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import ACCUMULATOR, BITS, ceil_to, group_sizes


@dataclass(frozen=True)
class Blocking:
    """The blocks that extents are rounded up to, and how operands and results are stored.

    Zeros fill the surplus of operands; the surplus of results is not written to the user's tensor.
    """

    groups: int = 1
    """The multiple that groups are rounded up to."""
    c: int = 1
    o: int = 1
    """Those of a group's channels of x, and of y."""
    position: int = 1
    """That of positions along the last spatial axis of the result, or, for a weights gradient, of the sum."""
    packed: tuple[int, int] = (1, 1)
    """The numbers of channels c and o that a weights gradient packs together, if more than `c` and `o`."""
    pairs: bool = False
    """Whether operands are bf16 dot-product pairs: they keep 16 bits, and an instruction adds two products to an
    f32."""
    implicit_axes: int = 0
    """The number of spatial axes, from the first, with implicit padding: it is not stored, since the schedule leaves
    its products out."""
    last_reversed: bool = False
    """Whether a data gradient's filter is stored with its last axis reversed, so that what neighbouring taps read of
    both operands is contiguous."""
    x_by_phases: bool = False
    """Whether a weights gradient stores x phase by phase along a strided last axis, so that vectors are contiguous."""
    image_halves: int = 1
    """2 where a weights gradient takes each image as two halves along the first spatial axis."""
    in_place: bool = False
    """Whether the sum is written in place: it is the f32 result itself, without a stage that converts it."""
    result_position: int = 0
    """Positions along the last axis that a result is rounded up to, if not to `position`: with a scratch accumulator
    another pass writes the result."""

    @property
    def dtype(self) -> str:
        """The type of operands."""
        return BITS if self.pairs else ACCUMULATOR

    def operand_extents(self, problem: Problem) -> tuple[int, int, int]:
        """The extents of groups, and of a group's channels c and o."""
        c_group, o_group = group_sizes(problem.geometry)
        return ceil_to(problem.geometry.groups, self.groups), ceil_to(c_group, self.c), ceil_to(o_group, self.o)

    @property
    def packed_blocks(self) -> tuple[int, int]:
        """Multiples that a weights gradient's channels (c, o) are padded to."""
        return max(self.c, self.packed[0]), max(self.o, self.packed[1])

    def converts(self, problem: Problem) -> bool:
        """Whether operands have another type than the user's tensors."""
        return problem.dtype != "f32" and not self.pairs

    def positions(self, problem: Problem, multiple: int | None = None) -> tuple[int, ...]:
        """How many positions of y there are along each axis, the last rounded up to `position` or a `multiple`."""
        *outer, last = problem.geometry.y
        return (*outer, ceil_to(last, multiple or self.position))
