"""The operands of a matrix product, as vectors of 16 bytes: read in place from the user's tensor, or packed.

A tensor with channels last is read in place, if its channels come in whole vectors. Any other operand is packed by a
kernel of its own: channels last, in whole vectors, padded with zeros. That costs one more pass over the operand, which
the products of all taps share. cuDNN changes layouts for tensor cores in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvm import tirx

from tvmconvgrad.schedules.cuda import packing, writing
from tvmconvgrad.schedules.cuda.expression_stages import Stage
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.tensors import DTYPES, Index, group_sizes

What = Literal["y", "x", "filter"]
"""The tensors that may be operands: data on the side of y or of x, or the filter."""


@dataclass(frozen=True)
class Operand:
    """A (0) or B (1) of the products whose sums read this stage."""

    problem: Problem
    stage: Stage
    is_filter: bool
    """Whether it is the filter, and not data."""
    packed: tirx.Buffer | None
    """The packed operand; None: it is read in place from the user's tensor."""
    along: str
    """The axis along which its vectors lie: "m", "n" or "k"."""

    @classmethod
    def of(cls, problem: Problem, stage: Stage, number: int) -> Operand:
        """The operand of a stage: in place if its vectors are contiguous, else packed."""
        what = operands(problem)[number]
        is_filter, last = what == "filter", _last_axis(problem, what)
        in_vectors = lies_in_vectors(problem, what)
        axis = last if in_vectors and last else _packed_axis(problem, is_filter, number)
        packed = None if in_vectors else _packed(problem, stage, is_filter)
        return cls(problem, stage, is_filter, packed, _role(problem, axis, number))

    def vector(self, index: list[Index]) -> tuple[Index, Index]:
        """The address of the vector from an element of the stage on, and whether it is data, not zero."""
        if self.packed is not None:
            return writing.address(self.packed, vector_lanes(self.problem), *self._order(index)), tirx.const(True)
        source, inside = self.stage.read(index)
        return tirx.address_of(source), inside

    def element(self, index: list[Index]) -> tuple[tirx.Buffer, list[Index]]:
        """The buffer that an element of the stage is read from, and its index there, which may lie outside."""
        if self.packed is not None:
            return self.packed, self._order(index)
        source, _ = self.stage.read(index)
        return source.source, list(source.indices)

    def pack(self) -> tirx.Stmt | None:
        """The kernel that packs the operand, with a thread for each vector; None if it is read in place."""
        if self.packed is None:
            return None
        lanes = vector_lanes(self.problem)
        *outer, last = (int(extent) for extent in self.packed.shape)
        shape = (*outer, last // lanes)
        order = self._reading_order(len(shape))

        def place(at: Sequence[Index], lane: Index) -> list[Index]:
            *rest, block = (at[order.index(axis)] for axis in range(len(shape)))
            return [*rest, block * lanes + lane]

        def value(index: list[Index]) -> Index:
            return self.stage.at(self._stage_index(index))

        return packing.pack(self.packed, [shape[axis] for axis in order], lanes, place, value)

    def _order(self, index: list[Index]) -> list[Index]:
        """An index of the stage in the packed order of axes: channels last."""
        if self.is_filter:
            return index
        n, g, channel, *space = index
        return [n, g, *space, channel]

    def _stage_index(self, packed: list[Index]) -> list[Index]:
        if self.is_filter:
            return packed
        n, g, *space, channel = packed
        return [n, g, channel, *space]

    def _reading_order(self, rank: int) -> list[int]:
        """An order of the packed axes in which neighbouring threads read neighbouring elements: in NCX positions
        last."""
        if self.is_filter or self.problem.data_format == "NXC":
            return list(range(rank))
        return [0, 1, rank - 1, *range(2, rank - 1)]


def operands(problem: Problem) -> tuple[What, What]:
    """The tensors that are A and B."""
    found: dict[Gradient, tuple[What, What]] = {
        Gradient.FILTER: ("x", "y"),
        Gradient.DATA: ("y", "filter"),
        Gradient.FORWARD: ("x", "filter"),
    }
    return found[problem.gradient]


def lies_in_vectors(problem: Problem, what: What) -> bool:
    """Whether the user's tensor is read in place: its channels are innermost, in whole vectors."""
    last = _last_axis(problem, what)
    return last is not None and _sizes(problem)[last] % vector_lanes(problem) == 0


def _last_axis(problem: Problem, what: What) -> str | None:
    """Which channels lie innermost in the user's tensor: "c", "o", or None."""
    if what == "filter":
        return {"C": "c", "O": "o"}.get(problem.filter_axes[-1])
    return None if problem.data_format == "NCX" else {"y": "o", "x": "c"}[what]


def _sizes(problem: Problem) -> dict[str, int]:
    c_group, o_group = group_sizes(problem.geometry)
    return {"c": c_group, "o": o_group}


def _packed_axis(problem: Problem, is_filter: bool, number: int) -> str:
    """The innermost channels of the stage, packed."""
    if is_filter:
        return "o"
    of_y = number == 1 or problem.gradient is Gradient.DATA
    return "o" if of_y else "c"


def _role(problem: Problem, axis: str, number: int) -> str:
    if problem.gradient is Gradient.FILTER:
        return "m" if number == 0 else "n"
    of_k = "o" if problem.gradient is Gradient.DATA else "c"
    return "k" if axis == of_k else "n"


def _packed(problem: Problem, stage: Stage, is_filter: bool) -> tirx.Buffer:
    shape = list(stage.shape)
    if not is_filter:
        shape.append(shape.pop(2))
    return writing.memory(f"{stage.name}_packed", shape, DTYPES[problem.dtype], "global")
