"""Reading a depthwise operand: vectors of neighbouring groups, of which each has a single channel.

Along one spatial axis, the `run`, a thread computes several neighbours, which meet many of the same elements: each is
read once, into a window of registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.stages import Stage
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.schedules.rewriting import replaced
from tvmconvgrad.te.tensors import ACCUMULATOR, Index

THREADS = 256


@dataclass(frozen=True)
class Lanes:
    """What a sum reads of one operand, for `count` groups at once."""

    total: Stage
    load: TensorLoad
    stage: Stage
    count: int
    contiguous: bool
    """Whether neighbouring groups are neighbours in the user's tensor, and come in whole vectors."""
    packed: tirx.Buffer | None = None
    """The data as (n, *space, group), in place of the user's tensor."""

    @property
    def group(self) -> int:
        """Which axis of the stage is the groups'."""
        return 0 if self.stage.name.startswith("w") else 1

    def where(self, index: Sequence[Index], summed: Sequence[Index]) -> list[Index]:
        """Which element of the stage belongs to an element of the sum (of the first group) and to a summed index."""
        bound = dict(zip((*self.total.variables, *self.total.summed), (*index, *summed)))
        return [replaced(each, bound) for each in self.load.indices]

    def read(
        self, where: Sequence[Index], to: tirx.Buffer, at: int, conditions: Sequence[Index] = ()
    ) -> list[tirx.Stmt]:
        """Read the elements of all groups as f32, to[at : at + count]; zeros where a condition does not hold."""
        raw = self.raw("raw", 1)

        def convert(i: Index) -> tirx.Stmt:
            return writing.store(to, writing.load(raw, i).astype(ACCUMULATOR), at + i)

        loads = self.fetch(where, raw, 0, conditions)
        return [writing.allocate(raw), writing.clear(raw), loads, writing.unrolled("lane", self.count, convert)]

    def raw(self, name: str, count: int) -> tirx.Buffer:
        """Registers for so many elements of all groups, as they lie in memory."""
        source, _ = self.stage.read(self.stage.variables)
        return writing.memory(name, (count * self.count,), str(source.source.dtype), "local")

    def fetch(self, where: Sequence[Index], raw: tirx.Buffer, at: int, conditions: Sequence[Index] = ()) -> tirx.Stmt:
        """Load the elements of all groups, raw[at : at + count]; nothing where a condition does not hold."""

        def lane(i: Index) -> tirx.Stmt:
            return writing.store(raw, self._element(where, i), at + i)

        each = writing.vectorized if self.contiguous or self.packed is not None else writing.unrolled
        inside = [] if self.packed is not None else [self.stage.read(where)[1]]
        return writing.when([*conditions, *inside], each("lane", self.count, lane))

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
        packed, (n_extent, groups, _, *space_extents) = self.packed, self.stage.shape
        shape = (n_extent, groups // self.count, *space_extents)

        def vector(flat: Index) -> tirx.Stmt:
            n, block, *space = writing.unflatten(flat, shape)
            registers = writing.memory("vector", (self.count,), str(packed.dtype), "local")

            def lane(i: Index) -> tirx.Stmt:
                value = self.stage.at([n, block * self.count + i, number(0), *space])
                return writing.store(registers, value.astype(str(packed.dtype)), i)

            def whole(i: Index) -> tirx.Stmt:
                return writing.store(packed, writing.load(registers, i), n, *space, block * self.count + i)

            return writing.seq(
                writing.allocate(registers),
                writing.unrolled("lane", self.count, lane),
                writing.vectorized("lane", self.count, whole),
            )

        return writing.elementwise(prod(shape), THREADS, vector)


@dataclass(frozen=True)
class Window:
    """The elements along the run that some neighbours and taps meet: which of them is where in the window."""

    places: dict[tuple[int, int], int]
    """By (neighbour, tap)."""
    first: list[tuple[int, int]]
    """For each place one neighbour and tap that meet it."""

    @classmethod
    def of(cls, stage_index: dict[tuple[int, int], Index]) -> Window:
        """The window, from the index along the run that each neighbour and tap meet."""
        base = next(iter(stage_index.values()))
        simplify = Analyzer().simplify
        offsets = {key: int(simplify(index - base)) for key, index in stage_index.items()}
        ordered = sorted(set(offsets.values()))
        first = [next(key for key, offset in offsets.items() if offset == wanted) for wanted in ordered]
        return cls({key: ordered.index(offset) for key, offset in offsets.items()}, first)


def with_axis(index: Sequence[Index], axis: int, value: Index | int) -> list[Index]:
    """An index with another value along an axis."""
    return [number(value) if i == axis else each for i, each in enumerate(index)]
