"""Reads of depthwise operands, as vectors of neighbouring groups of one channel each.

A thread has a tile of neighbouring positions, which read many of the same elements. Each element is loaded once, to
registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer

from tvmconvgrad.schedules.cuda import packing, writing
from tvmconvgrad.schedules.cuda.expression_stages import Stage
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import ACCUMULATOR, Index
from tvmconvgrad.tir.rewriting import replaced

SPACE = 3
"""The first spatial axis of a stage of data."""
AHEAD = 2
"""Chosen, not measured: rows of data whose loads are in flight while a row is multiplied. More hide more of memory's
latency, and need more registers."""


@dataclass(frozen=True)
class Lanes:
    """A sum's reads of one operand, as vectors of `count` groups."""

    total: Stage
    load: TensorLoad
    stage: Stage
    count: int
    contiguous: bool
    """Whether neighbouring groups are contiguous in the user's tensor, in whole vectors."""
    packed: tirx.Buffer | None = None
    """The packed data (n, *space, group), which is read instead of the user's tensor."""

    @property
    def group(self) -> int:
        """The number of the stage's axis of groups."""
        return 0 if self.stage.name.startswith("w") else 1

    def where(self, index: Sequence[Index], summed: Sequence[Index]) -> list[Index]:
        """The index in the stage that an element of the sum (of the first group) reads at an index of K."""
        bound = dict(zip((*self.total.variables, *self.total.summed), (*index, *summed)))
        return [replaced(each, bound) for each in self.load.indices]

    def raw(self, name: str, count: int) -> tirx.Buffer:
        """Registers for so many vectors, in the user's type."""
        source, _ = self.stage.read(self.stage.variables)
        return writing.memory(name, (count * self.count,), str(source.source.dtype), "local")

    def load_vector(
        self, where: Sequence[Index], raw: tirx.Buffer, at: int, conditions: Sequence[Index] = ()
    ) -> tirx.Stmt:
        """Load a vector to raw[at : at + count]; nothing is loaded unless all conditions hold."""

        def lane(i: Index) -> tirx.Stmt:
            return writing.store(raw, self._element(where, i), at + i)

        each = writing.vectorized if self.contiguous or self.packed is not None else writing.unrolled
        inside = [] if self.packed is not None else [self.stage.read(where)[1]]
        return writing.when([*conditions, *inside], each("lane", self.count, lane))

    def load_vector_inside(self, where: Sequence[Index], raw: tirx.Buffer, at: int) -> tirx.Stmt:
        """The same for data; nothing is loaded beyond the stage, where parts of the last tiles may lie."""
        axes = range(SPACE, len(self.stage.shape))
        return self.load_vector(where, raw, at, [where[axis] < self.stage.shape[axis] for axis in axes])

    def _element(self, where: Sequence[Index], i: Index) -> Index:
        """The element of a group, where the conditions hold."""
        if self.packed is not None:
            n, group, _, *space = where
            return writing.load(self.packed, n, *space, group + i)
        if self.contiguous:
            source, _ = self.stage.read(where)
            *outer, last = source.indices
            return writing.load(source.source, *outer, last + i)
        return self.stage.read(with_axis(where, self.group, where[self.group] + i))[0]

    def pack(self) -> tirx.Stmt | None:
        """The kernel that packs, if that is needed: a thread for the groups of a vector, neighbours along space."""
        if self.packed is None:
            return None
        n_extent, groups, _, *space_extents = self.stage.shape

        def place(at: Sequence[Index], lane: Index) -> list[Index]:
            n, block, *space = at
            return [n, *space, block * self.count + lane]

        def value(index: list[Index]) -> Index:
            n, *space, group = index
            return self.stage.at([n, group, number(0), *space])

        return packing.pack(self.packed, (n_extent, groups // self.count, *space_extents), self.count, place, value)


Read = tuple[int, int]
"""An output and a tap of it, by their numbers."""


@dataclass(frozen=True)
class ReadSet:
    """The elements of a stage that the outputs of a thread read with their taps, row by row."""

    places: dict[Read, int]
    """Which of them each output and tap read."""
    first: list[Read]
    """For each element one of those that read it."""
    rows: list[int]
    """For each element the number of its row: along the last axis."""

    @classmethod
    def of(cls, reads: Mapping[Read, Sequence[Index]], axes: Sequence[int]) -> ReadSet:
        """The set, from where each output and tap read the stage; elements differ along these of its axes."""
        base = next(iter(reads.values()))
        simplify = Analyzer().simplify
        offsets = {key: tuple(int(simplify(where[axis] - base[axis])) for axis in axes) for key, where in reads.items()}
        first = {offset: key for key, offset in reversed(offsets.items())}
        ordered = sorted(first)
        rows = sorted({offset[:-1] for offset in ordered})
        places = {offset: place for place, offset in enumerate(ordered)}
        return cls(
            {key: places[offset] for key, offset in offsets.items()},
            [first[offset] for offset in ordered],
            [rows.index(offset[:-1]) for offset in ordered],
        )

    def empty(self) -> list[list[tirx.Stmt]]:
        """Nothing to do yet, for each row."""
        return [[] for _ in range(self.rows[-1] + 1)]


def loads_ahead(loads: Sequence[Sequence[tirx.Stmt]], work: Sequence[Sequence[tirx.Stmt]]) -> list[tirx.Stmt]:
    """The work of each row, which needs the loads of this and earlier rows; loads run ahead of it by some rows, so that
    they are under way meanwhile."""
    found: list[tirx.Stmt] = []
    for row in range(len(work) + AHEAD):
        found += loads[row] if row < len(loads) else []
        found += work[row - AHEAD] if row >= AHEAD else []
    return found


def multiply_add(sums: tirx.Buffer, at: int, factors: Sequence[tuple[tirx.Buffer, int]], lanes: int) -> tirx.Stmt:
    """Add the products of two vectors, given as registers and the number of a vector in them, to the `at`-th sums."""

    def lane(i: Index) -> tirx.Stmt:
        one, other = (writing.load(raw, place * lanes + i).astype(ACCUMULATOR) for raw, place in factors)
        return writing.store(sums, writing.load(sums, at * lanes + i) + one * other, at * lanes + i)

    return writing.unrolled("lane", lanes, lane)


def with_axis(index: Sequence[Index], axis: int, value: Index | int) -> list[Index]:
    """An index with another value along an axis."""
    return [number(value) if i == axis else each for i, each in enumerate(index)]
