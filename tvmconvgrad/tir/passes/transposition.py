"""A pass for transposing copies: the source is contiguous along one axis, and the copy along another.

Element by element such a copy takes several cycles for each. Here it goes by blocks of S x L elements: S vectors are
loaded along the source, transposed in registers (tir/passes/shuffles.py), and stored along the copy.

* If a block is longer along the source than along the copy, a vector is stored in parts of S elements; if it is
  shorter, a vector is loaded in such parts. Two rows that are interleaved in the copy need one shuffle for each half.
* If the source is strided, as in a strided convolution, the elements between are loaded, too, and dropped. If the copy
  is, a vector's elements are stored apart (tir/passes/strided_stores.py).
* An element may be a pair of neighbours, in the source and in the copy.

f16 that is converted is transposed before its conversion, since that is half as much to shuffle. It also avoids a
defect of LLVM 22: with both operands of `unpcklps` converted by `vcvtph2ps`, and the other half of their interleaving
unused, it converts the result of `vpunpcklwd` instead, which takes other lanes, and results are wrong.

A schedule annotates the outer of the two loops, the one along the source, by `TRANSPOSE`. A single annotated loop,
along both, copies a row (tir/passes/rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_equal, structural_map

from tvmconvgrad.tir.annotations import MOST_APART, TRANSPOSE
from tvmconvgrad.tir.passes import shuffles
from tvmconvgrad.tir.passes.rows import Row
from tvmconvgrad.tir.passes.statements import (
    SIDES,
    adds_in_place,
    begins_of,
    index,
    is_guarded,
    is_whole,
    sequence,
    step_of,
    without_binds,
)
from tvmconvgrad.tir.rewriting import nodes, replaced, uses


def transposed(marked: tirx.AttrStmt) -> tirx.Stmt:
    """The annotated loops, copied by blocks; loops of the kind "vectorized" are left for TVM to vectorise."""
    return _by_blocks(marked.body) if marked.attr_key == TRANSPOSE else marked


def _by_blocks(outer: tirx.Stmt) -> tirx.Stmt:
    """An annotated copy, which may be made under a condition, by blocks."""
    if isinstance(outer, tirx.IfThenElse) and outer.else_case is None:
        return tirx.IfThenElse(outer.condition, _by_blocks(without_binds(outer.then_case)), None)
    inner = without_binds(outer.body) if isinstance(outer, tirx.For) else None
    if isinstance(inner, tirx.BufferStore | tirx.IfThenElse) and is_whole(outer):
        return Row(outer, inner).by_vectors() or outer
    store = without_binds(inner.body) if isinstance(inner, tirx.For) else None
    pair = None
    if isinstance(store, tirx.For):
        pair, store = store, without_binds(store.body)
    loops = [outer, inner, *([pair] if pair is not None else [])]
    if not isinstance(store, tirx.BufferStore) or not all(map(is_whole, loops)):
        return outer
    return _Copy(outer, inner, store, pair).blocked() or outer


class _Copy:
    """copy[.. + b] = source[.. + a * apart] for a in `outer` and b in `inner`; zero under a condition. With a loop over
    a `pair`, elements are pairs."""

    def __init__(self, outer: tirx.For, inner: tirx.For, store: tirx.BufferStore, pair: tirx.For | None = None) -> None:
        self.a, self.b = outer.loop_var, inner.loop_var
        self.extents = int(outer.extent), int(inner.extent)
        self.store = store
        self.pair = pair.loop_var if pair is not None else None
        self.run = int(pair.extent) if pair is not None else 1
        self.adds = adds_in_place(store)

    def blocked(self) -> tirx.Stmt | None:
        """The copy by blocks, the last of which may overlap the ones before; None if it has no such form."""
        if not self._is_transposed() or self.lanes == 1:
            return None
        if self.adds:
            return self._blocked_apart() if self._apart == 1 else None
        begins_a, begins_b = (begins_of(*block) for block in zip(self.extents, self.block))
        if self._is_in_registers():  # registers have constant indices only
            return sequence([self._block(index(a), index(b)) for a in begins_a for b in begins_b])
        last_a, last_b = begins_a[-1], begins_b[-1]
        counts = len(begins_a), len(begins_b)
        return _loops(
            (self.a, self.b),
            counts,
            lambda a, b: self._block(_begin(a, last_a, self.block[0]), _begin(b, last_b, self.block[1])),
        )

    def _blocked_apart(self) -> tirx.Stmt:
        """The copy by blocks that do not overlap, since each element is added once: the last block along an axis leaves
        out what the one before it has added."""
        segments = (_segments(*axis) for axis in zip(self.extents, self.block))
        return sequence([self._added(along_a, along_b) for along_a, along_b in product(*segments)])

    def _added(self, along_a: _Segment, along_b: _Segment) -> tirx.Stmt:
        """The blocks of a segment along each axis."""
        skip = along_a.skip, along_b.skip
        begins = [
            [index(along.first + number * side) for number in range(along.blocks)]
            for along, side in zip((along_a, along_b), self.block)
        ]
        if self._is_in_registers():
            return sequence([self._transposed(a, b, self._load, skip) for a, b in product(*begins)])
        (first_a, *_), (first_b, *_) = begins
        return _loops(
            (self.a, self.b),
            (along_a.blocks, along_b.blocks),
            lambda a, b: self._transposed(a * self.block[0] + first_a, b * self.block[1] + first_b, self._load, skip),
        )

    @cached_property
    def rows(self) -> int:
        """The number of vectors that are loaded for a block: two, or as many as its shorter side is long."""
        return 2 if self.extents[1] == 2 else _widest(min(self.extents))

    @cached_property
    def lanes(self) -> int:
        """The number of a block's elements in one vector; 1 if there are too few to vectorise."""
        if self.extents[1] == 2:
            return _widest(self.extents[0])
        simple = self.pair is None and not self._chooses and self._apart == self._stored_apart == 1
        return _widest(max(self.extents)) if simple and self.rows > 1 else self.rows

    @cached_property
    def block(self) -> tuple[int, int]:
        """The block's elements along `a` and along `b`."""
        return (self.lanes, self.rows) if self.extents[0] > self.extents[1] else (self.rows, self.lanes)

    def _is_in_registers(self) -> bool:
        return str(self._load.source.scope()) == "local"

    @cached_property
    def _load(self) -> tvm.ir.TensorLoad:
        return self._loads[0]

    @cached_property
    def _loads(self) -> list[tvm.ir.TensorLoad]:
        """What is loaded from the source; for what is added to bf16, several times the same."""
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        return [load for load in loads if not (self.adds and load.source.same_as(self.store.buffer))]

    @cached_property
    def _apart(self) -> int:
        """The stride of neighbours along `a` in the source, in elements, or in pairs."""
        return (step_of(self._load.indices, self.a) or 0) // self.run

    @cached_property
    def _chooses(self) -> bool:
        """Whether a condition differs between a vector's lanes."""
        lanes = [self.a, self.pair] if self.pair is not None else [self.a]
        return is_guarded(self.store.value) and any(uses(self.store.value.args[0], var) for var in lanes)

    @property
    def _is_all_or_nothing(self) -> bool:
        """Whether there is a condition that is the same for all elements of a block."""
        lanes = [self.a, self.b, *([self.pair] if self.pair is not None else [])]
        return is_guarded(self.store.value) and not any(uses(self.store.value.args[0], var) for var in lanes)

    def _is_transposed(self) -> bool:
        if not self._loads or not _are_the_same(self._loads) or not self._has_pairs(self._load):
            return False
        if self.rows == 2:
            return self._apart == self._stored_apart == 1 and step_of(self.store.indices, self.a) == self.rows
        most = 1 if self._chooses or self.pair is not None else MOST_APART
        most_stored = 1 if self.pair is not None else MOST_APART
        return 1 <= self._apart <= most and 1 <= self._stored_apart <= most_stored

    def _has_pairs(self, load: tvm.ir.TensorLoad) -> bool:
        """Whether pairs, if there are any, are contiguous in the source and in the copy."""
        if self.pair is None:
            return True
        steps = [step_of(indices, self.pair) for indices in (load.indices, self.store.indices)]
        pairs = [step_of(load.indices, self.a), step_of(self.store.indices, self.b)]
        return steps == [1, 1] and pairs == [self.run, self.run]

    @cached_property
    def _stored_apart(self) -> int:
        """The stride of neighbours along `b` in the copy, in elements, or in pairs."""
        return (step_of(self.store.indices, self.b) or 0) // self.run

    def _block(self, a: tvm.ir.Expr, b: tvm.ir.Expr) -> tirx.Stmt:
        """One block."""
        value = self.store.value
        if not self._is_all_or_nothing:
            return self._copied(a, b, value)
        condition, loaded, instead = value.args  # tested here once, since each load would test it again
        filled = [tirx.Broadcast(instead, self.lanes * self.run)] * self.rows
        return tirx.IfThenElse(condition, self._copied(a, b, loaded), sequence(self._stored(a, b, filled)))

    def _copied(self, a: tvm.ir.Expr, b: tvm.ir.Expr, value: tvm.ir.Expr) -> tirx.Stmt:
        """One block of `value`. Lanes that a condition replaces by zeros are loaded, too, if they lie in the buffer;
        otherwise the block is copied element by element."""
        if not self._chooses:
            return self._transposed(a, b, value)
        (place,) = self._load.indices
        ends = (0, 0), (self.block[0] - 1, self.block[1] - 1)
        first, last = (replaced(place, {self.a: a + i, self.b: b + j} | self._in_pair(0)) for i, j in ends)
        size = prod(map(int, self._load.source.shape))
        inside = tirx.all(first >= 0, last + self.run <= size, step_of([place], self.b) is not None)
        by_element = _loops(
            (self.a, self.b),
            self.block,
            lambda i, j: sequence(
                [replaced(self.store, {self.a: a + i, self.b: b + j} | self._in_pair(k)) for k in range(self.run)]
            ),
        )
        return tirx.IfThenElse(inside, self._transposed(a, b, tirx.Select(*value.args)), by_element)

    def _in_pair(self, place: int) -> dict[tirx.Var, tvm.ir.Expr]:
        """The value of the loop variable over a pair; empty without pairs."""
        return {} if self.pair is None else {self.pair: index(place)}

    def _transposed(
        self, a: tvm.ir.Expr, b: tvm.ir.Expr, value: tvm.ir.Expr, skip: tuple[int, int] = (0, 0)
    ) -> tirx.Stmt:
        """One block of a `value` for which no condition is tested. What is added is not added to the first elements
        along `a` and along `b` that `skip` counts."""
        value = _as_stored_in_f16(value)
        dtype = str(value.ty)
        memory = tirx.decl_buffer((self.rows * self.lanes * self.run * self._apart,), dtype, "rows", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
        statements: list[tirx.Stmt] = [tirx.AllocBuffer(memory, keep)]

        def shuffled(parts: Sequence[tvm.ir.Expr], lanes: Iterable[int]) -> tvm.ir.Expr:
            numbers = _indices(lanes)
            name = tirx.Var("vector", f"{dtype}x{len(numbers)}")
            statements.append(tirx.Bind(name, tirx.Shuffle(list(parts), numbers)))
            return name

        def shuffled_elements(one: tvm.ir.Expr, other: tvm.ir.Expr, lanes: Sequence[int]) -> tvm.ir.Expr:
            return shuffled([one, other], [lane * self.run + i for lane in lanes for i in range(self.run)])

        vectors = []
        for row in range(self.rows):
            loads, parts = self._loaded(memory, row, value, a, b)
            statements += loads
            vectors.append(parts[0] if len(parts) == 1 else shuffled(parts, self._taken))
        if self.rows == 2:
            one, other = vectors
            vectors = [shuffled_elements(one, other, lanes) for lanes in shuffles.interleaved(self.lanes)]
        else:
            bits = tvm.DataType(dtype).bits * self.run
            vectors = shuffles.transposed(vectors, self.lanes, bits, shuffled_elements)
        return tirx.SeqStmt(statements + self._stored(a, b, vectors, skip))

    def _stored(
        self, a: tvm.ir.Expr, b: tvm.ir.Expr, vectors: Sequence[tvm.ir.Expr], skip: tuple[int, int] = (0, 0)
    ) -> list[tirx.Stmt]:
        """The stores of a block's transposed vectors, in parts that are contiguous along `b`."""
        statements: list[tirx.Stmt] = []
        length = self.lanes if self.rows == 2 else min(self.block[1], self.lanes)
        for number, vector in enumerate(vectors):
            for begin in range(0, self.lanes, length):
                lanes = range(begin * self.run, (begin + length) * self.run)
                part = vector if length == self.lanes else tirx.Shuffle([vector], _indices(lanes))
                first = number * self.lanes // 2 if self.rows == 2 else number + begin
                (place,) = replaced(self.store, {self.a: a + first, self.b: b} | self._in_pair(0)).indices
                if self.adds:
                    per_a = 2 if self.rows == 2 else length
                    behind = max(0, skip[0] - first) * per_a + (0 if self.rows == 2 else skip[1])
                    statements += self._sums(part, place, length, behind)
                    continue
                elements = tirx.Ramp(place, index(self._stored_apart), length * self.run)
                converted = part.astype(f"{self.store.buffer.dtype}x{length * self.run}")
                statements.append(tirx.BufferStore(self.store.buffer, converted, [elements]))
        return statements

    def _sums(self, part: tvm.ir.Expr, place: tvm.ir.Expr, length: int, first: int) -> list[tirx.Stmt]:
        """Add a part of a vector, of `length` lanes, to what is at `place`, from its lane `first` on."""
        if first >= length:
            return []
        kind = tirx.ForKind.VECTORIZED if length - first > 1 else tirx.ForKind.SERIAL
        memory = tirx.decl_buffer((length,), str(self._load.source.dtype), "part", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}
        lane = tirx.Var("lane", "int64")
        to = place + (lane + first) * self._stored_apart

        def moved(load: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
            is_own = load.source.same_as(self.store.buffer)
            return tirx.BufferLoad(self.store.buffer, [to]) if is_own else tirx.BufferLoad(memory, [lane + first])

        value = structural_map(self.store.value, (tvm.ir.TensorLoad, moved))
        store = tirx.BufferStore(self.store.buffer, value, [to])
        return [
            tirx.AllocBuffer(memory, keep),
            tirx.BufferStore(memory, part, [tirx.Ramp(index(0), index(1), length)]),
            tirx.For(lane, 0, length - first, kind, store),
        ]

    def _loaded(
        self, memory: tirx.Buffer, row: int, value: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr
    ) -> tuple[list[tirx.Stmt], list[tvm.ir.Expr]]:
        """What loads a vector of a block, and the parts that it is loaded in: neighbours along `a`, of which only every
        so-many-th may be of use."""
        statements: list[tirx.Stmt] = []
        parts: list[tvm.ir.Expr] = []
        along = min(self.block[0], self.lanes)
        for begin in range(0, self.lanes, along):
            length = along * self.run
            for piece, ahead in enumerate(shuffles.strided(length, self._apart)[0]):
                to = (row * self.lanes + begin) * self.run * self._apart + piece * length
                lane = tirx.Var("lane", "int64")
                element = self._element(value, a, b + (row + begin), lane + ahead)
                load = tirx.BufferStore(memory, element, [lane + to])
                statements.append(tirx.For(lane, 0, length, tirx.ForKind.VECTORIZED, load))
                parts.append(tirx.BufferLoad(memory, [tirx.Ramp(index(to), index(1), length)]))
        return statements, parts

    @property
    def _taken(self) -> list[int]:
        """The lanes of a vector's parts that are its elements."""
        length = min(self.block[0], self.lanes) * self.run
        _, lanes = shuffles.strided(length, self._apart)
        parts = range(0, self.lanes * self.run * self._apart, length * self._apart)
        return [begin + lane for begin in parts for lane in lanes]

    def _element(self, value: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr, offset: tvm.ir.Expr) -> tvm.ir.Expr:
        """What is made of the source's element so far behind that of (a, b)."""
        if self.pair is not None:
            return replaced(value, {self.a: a, self.b: b, self.pair: offset})
        if self._apart == 1:
            return replaced(value, {self.a: a + offset, self.b: b})
        (place,) = self._load.indices

        def moved(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
            return tirx.BufferLoad(load.source, [replaced(place, {self.a: a, self.b: b}) + offset])

        return replaced(structural_map(value, (tvm.ir.TensorLoad, moved)), {self.b: b})


def _as_stored_in_f16(value: tvm.ir.Expr) -> tvm.ir.Expr:
    """What a value is before it is converted from f16, where it is, or on a condition; else the value itself."""
    if isinstance(value, tirx.Cast) and str(value.value.ty) == "float16":
        return value.value
    if is_guarded(value) or isinstance(value, tirx.Select):
        guarded = is_guarded(value)
        condition, taken, zero = value.args if guarded else (value.condition, value.true_value, value.false_value)
        stored = _as_stored_in_f16(taken)
        if str(stored.ty) != str(value.ty):
            make = tirx.if_then_else if guarded else tirx.Select
            return make(condition, stored, zero.astype(str(stored.ty)))
    return value


def _are_the_same(loads: Sequence[tvm.ir.TensorLoad]) -> bool:
    """Whether all loads are of the same element: rounding to bf16 uses its argument several times."""
    first = loads[0]
    return all(each.source.same_as(first.source) and structural_equal(each.indices, first.indices) for each in loads)


class _Segment(NamedTuple):
    """So many blocks along an axis from an element on, of which each leaves out its first `skip` elements."""

    first: int
    blocks: int
    skip: int


def _segments(extent: int, side: int) -> list[_Segment]:
    """An axis by blocks of `side` elements: whole ones, then one that reaches back."""
    whole, rest = divmod(extent, side)
    return [_Segment(0, whole, 0), *([_Segment(extent - side, 1, side - rest)] if rest else [])]


def _begin(number: tirx.Var, last: int, side: int) -> tvm.ir.Expr:
    return number * side if last % side == 0 else tirx.min(number * side, index(last))


def _loops(
    variables: Sequence[tirx.Var], extents: Sequence[int], body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]
) -> tirx.Stmt:
    """Two loops, with new variables of these names."""
    a, b = (tirx.Var(var.name, "int64") for var in variables)
    return tirx.For(a, 0, extents[0], tirx.ForKind.SERIAL, tirx.For(b, 0, extents[1], tirx.ForKind.SERIAL, body(a, b)))


def _widest(extent: int) -> int:
    """How many elements a vector may have, of so many; 1: none."""
    return next((side for side in SIDES if side <= extent), 1)


def _indices(lanes: Iterable[int]) -> list[tirx.IntImm]:
    return [tirx.IntImm("int32", lane) for lane in lanes]
