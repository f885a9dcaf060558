"""A copy whose source is contiguous along one axis, and whose result along another: what it reads and stores, and the
blocks that it is made by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_equal

from tvmconvgrad.tir.passes.limits import MAX_STRIDE
from tvmconvgrad.tir.passes.statements import (
    SIDES,
    adds_in_place,
    index,
    is_bias,
    is_linear,
    shared_and_own,
    step_of,
    undivided,
)
from tvmconvgrad.tir.rewriting import nodes, replaced, uses


class TransposedCopy:
    """copy[.. + b] = source[.. + a * stride] for a in `outer` and b in `inner`; zero under a condition. With a loop
    over a `pair`, elements are pairs, which may lie apart in the source. A bias is added before elements are moved,
    with vectors along the source."""

    def __init__(self, outer: tirx.For, inner: tirx.For, store: tirx.BufferStore, pair: tirx.For | None = None) -> None:
        self.a, self.b = outer.loop_var, inner.loop_var
        self.extents = int(outer.extent), int(inner.extent)
        self.store = store
        self.pair = pair.loop_var if pair is not None else None
        self.run = int(pair.extent) if pair is not None else 1
        self.adds = adds_in_place(store)

    @cached_property
    def rows(self) -> int:
        """The number of vectors that are loaded for a block: two, or as many as its shorter side is long."""
        return 2 if self.extents[1] == 2 else _widest(min(self.extents))

    @cached_property
    def lanes(self) -> int:
        """The number of a block's elements in one vector; 1 if there are too few to vectorise."""
        if self.extents[1] == 2:
            return _widest(self.extents[0])
        simple = self.pair is None and not self.chooses and self.stride == self.stored_stride == 1
        return _widest(max(self.extents)) if (simple or self.joins) and self.rows > 1 else self.rows

    @cached_property
    def block(self) -> tuple[int, int]:
        """The block's elements along `a` and along `b`."""
        return (self.lanes, self.rows) if self.extents[0] > self.extents[1] else (self.rows, self.lanes)

    def is_in_registers(self) -> bool:
        """Whether the source lies in registers, which have constant indices only."""
        return str(self.load.source.scope()) == "local"

    @cached_property
    def load(self) -> tvm.ir.TensorLoad:
        """The element that is loaded from the source."""
        return self.loads[0]

    @cached_property
    def loads(self) -> list[tvm.ir.TensorLoad]:
        """What is loaded from the source; for what is added to bf16, several times the same."""
        loads = [load for load in nodes(self.store.value, tvm.ir.TensorLoad) if not is_bias(load)]
        return [load for load in loads if not (self.adds and load.source.same_as(self.store.buffer))]

    @cached_property
    def joins(self) -> bool:
        """Whether the elements of a pair lie apart in the source, each contiguous with its neighbours along `a`."""
        return self.pair is not None and step_of(self.load.indices, self.pair) != 1

    @cached_property
    def stride(self) -> int:
        """The stride of neighbours along `a` in the source, in elements, or in pairs that are contiguous there."""
        return (step_of(self.load.indices, self.a) or 0) // (1 if self.joins else self.run)

    @cached_property
    def stored_stride(self) -> int:
        """The stride of neighbours along `b` in the copy, in elements, or in pairs."""
        return (step_of(self.store.indices, self.b) or 0) // self.run

    @cached_property
    def along(self) -> list[tirx.Var]:
        """The variables over a vector's lanes in the source."""
        return [self.a, self.pair] if self.pair is not None else [self.a]

    @cached_property
    def shared(self) -> list[tvm.ir.Expr]:
        """The conditions that are the same for all elements of a block."""
        return shared_and_own(self.store.value, [*self.along, self.b])[0]

    @cached_property
    def own(self) -> list[tvm.ir.Expr]:
        """The conditions that differ between elements of a block. Elements for which one does not hold become zeros."""
        return [undivided(each, self.a) for each in shared_and_own(self.store.value, [*self.along, self.b])[1]]

    @cached_property
    def chooses(self) -> bool:
        """Whether a condition differs between a vector's lanes."""
        return any(uses(each, var) for each in self.own for var in self.along)

    @cached_property
    def own_vary(self) -> bool:
        """Whether own conditions depend on more than the place in the copy."""
        known = [*self.along, self.b]
        used = [var for each in self.own for var in tirx.analysis.undefined_vars(each)]
        return any(not any(var.same_as(each) for each in known) for var in used)

    def holds_always(self, a: int) -> bool:
        """Whether the own conditions hold for all elements of the blocks at `a`."""
        holds = self.all_hold(index(a), self.b) if self.chooses else None
        return isinstance(holds, tirx.IntImm) and bool(holds.value)

    def all_hold(self, a: tvm.ir.Expr, b: tvm.ir.Expr) -> tvm.ir.Expr | None:
        """The condition that the own conditions hold for all elements of the block at (a, b), since they do at its
        corners; None where that is not enough."""
        axes = {self.a: (a, self.block[0]), self.b: (b, self.block[1])}
        if self.pair is not None:
            axes[self.pair] = index(0), self.run
        if not all(is_linear(each, var) for each in self.own for var in axes):
            return None
        ends = product(*([(var, begin), (var, begin + size - 1)] for var, (begin, size) in axes.items()))
        corners = [dict(corner) for corner in ends]
        return Analyzer().simplify(tirx.all(*(replaced(each, corner) for each in self.own for corner in corners)))

    def is_transposed(self) -> bool:
        """Whether source and copy are contiguous, or strided by few elements, along different axes. A strided vector of
        which a condition chooses lanes has a form only where two rows are interleaved."""
        if not self.loads or not _are_the_same(self.loads) or not self._has_pairs(self.load):
            return False
        if self.rows == 2 and step_of(self.store.indices, self.a) != self.rows:
            return False
        has_bias = any(map(is_bias, nodes(self.store.value, tvm.ir.TensorLoad)))
        chooses_in_many_rows = self.chooses and self.rows != 2
        most = 1 if chooses_in_many_rows or self.pair is not None or has_bias else MAX_STRIDE
        most_stored = 1 if self.rows == 2 or self.pair is not None else MAX_STRIDE
        return 1 <= self.stride <= most and 1 <= self.stored_stride <= most_stored

    def _has_pairs(self, load: tvm.ir.TensorLoad) -> bool:
        """Whether pairs, if there are any, are contiguous in the copy, and in the source contiguous or each element
        with its neighbours."""
        if self.pair is None:
            return True
        if step_of(self.store.indices, self.pair) != 1 or step_of(self.store.indices, self.b) != self.run:
            return False
        across, along = (step_of(load.indices, var) for var in (self.pair, self.a))
        return across is not None and along == 1 and not self.chooses if self.joins else along == self.run

    def in_pair(self, place: int) -> dict[tirx.Var, tvm.ir.Expr]:
        """The value of the loop variable over a pair; empty without pairs."""
        return {} if self.pair is None else {self.pair: index(place)}


def _are_the_same(loads: Sequence[tvm.ir.TensorLoad]) -> bool:
    """Whether all loads are of the same element: rounding to bf16 uses its argument several times."""
    first = loads[0]
    return all(each.source.same_as(first.source) and structural_equal(each.indices, first.indices) for each in loads)


def _widest(extent: int) -> int:
    """How many elements a vector may have, of so many; 1: none."""
    return next((side for side in SIDES if side <= extent), 1)
