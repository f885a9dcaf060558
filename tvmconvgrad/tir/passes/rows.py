"""A pass for copies of rows: source and copy run along the same axis.

If a part of a row is padding, or lies beyond its end, a condition would be tested for each element. Here a row is
copied by vectors. A condition on loads selects lanes. A condition on stores is tested for both ends of a vector, then
of its halves, and so on; if it is known which elements are stored, and the CPU has masked stores, these take them. In
the copy, neighbours may be strided (tir/passes/strided_stores.py). LLVM's own code for such stores goes through memory,
and for bf16 it sometimes wrote the element behind the last one, too (LLVM 22).

In the source, too, neighbours may be strided, as in one phase of a strided convolution's row. LLVM would load them one
by one. Here all elements between the first and the last are loaded, and a shuffle picks the lanes:

    copy[a] = source[2 * a]    ->    part = source[0:2 * lanes]; copy[0:lanes] = part[0], part[2], part[4], ..
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.passes import shuffles
from tvmconvgrad.tir.passes.limits import MAX_STRIDE
from tvmconvgrad.tir.passes.statements import (
    SIDES,
    adds_in_place,
    begins_of,
    conjuncts,
    index,
    is_bias,
    is_guarded,
    is_linear,
    sequence,
    shared_and_own,
    step_of,
    undivided,
    unless_nowhere,
    without_binds,
)
from tvmconvgrad.tir.passes.strided_stores import masked_stores
from tvmconvgrad.tir.rewriting import nodes, replaced, uses

_MOST_UNROLLED = 8


class Row:
    """copy[.. + a] = source[.. + a * stride] for a in `loop`: zero under some conditions, or stored only under some."""

    def __init__(self, loop: tirx.For, body: tirx.Stmt, masked: Collection[str] = ()) -> None:
        self.a, self.extent, self.masked = loop.loop_var, int(loop.extent), masked
        self.side = next((side for side in SIDES if side <= self.extent), 1)
        self.stride = 1
        self.conditions: list[tvm.ir.Expr] = []
        while isinstance(body, tirx.IfThenElse) and body.else_case is None:
            self.conditions += [undivided(each, self.a) for each in conjuncts(body.condition)]
            body = without_binds(body.then_case)
        self.store = body

    def by_vectors(self) -> tirx.Stmt | None:
        """The copy by vectors, the last of which may overlap the one before; None if it cannot be vectorised."""
        if self.side == 1 or not isinstance(self.store, tirx.BufferStore):
            return None
        loads = nodes(self.store.value, tvm.ir.TensorLoad)  # several of the same, where it is rounded to bf16
        moved = [load for load in loads if not is_bias(load)]
        steps = {step_of(load.indices, self.a) for load in moved}
        if len(steps) != 1 or not step_of(self.store.indices, self.a):
            return None
        self.stride = steps.pop() or 0
        if not 1 <= self.stride <= (MAX_STRIDE if len(moved) == len(loads) and not self.conditions else 1):
            return None
        guarded = is_guarded(self.store.value)
        if not self.conditions and adds_in_place(self.store):
            return self._without_overlap()
        if not self.conditions:
            return self._loaded(loads[0]) if len(loads) == 1 or not guarded else None
        if not all(is_linear(each, self.a) for each in self.conditions):
            return sequence([self._stored([at], 1) for at in range(self.extent)]) if not guarded else None
        width = next((side for side in SIDES if self.extent % side == 0), 1)
        return self._stored(range(0, self.extent, width), width) if width > 1 and not guarded else None

    def _stored(self, begins: Sequence[int], size: int) -> tirx.Stmt:
        """The stores of vectors of `size` elements. If the conditions hold for the first and the last element, all are
        stored; otherwise each vector is tested alone, then each half of it, down to single elements. If it is known
        which of a vector's elements are stored, masked stores may take them."""
        known = self._known(begins[0], size) if len(begins) == 1 and self._may_mask() else None
        if known is not None:
            return self._masked(index(begins[0]), size, known)
        ends = (begins[0], begins[-1] + size - 1)
        corners = [{self.a: index(end)} for end in dict.fromkeys(ends)]
        holds = [replaced(each, corner) for each in self.conditions for corner in corners]
        condition = Analyzer().simplify(tirx.all(*holds))
        stores = sequence([self._vector(self.store, index(begin), size) for begin in begins])
        if isinstance(condition, tirx.IntImm) and condition.value:
            return stores
        if size == 1:
            return tirx.IfThenElse(condition, stores, None)
        half = size // 2
        smaller = [([begin], size) for begin in begins]
        if len(begins) == 1:
            smaller = [([begins[0]], half), ([begins[0] + half], half)]
        parts = unless_nowhere(self.conditions, corners, tirx.SeqStmt([self._stored(*each) for each in smaller]))
        return tirx.IfThenElse(condition, stores, parts)

    def _may_mask(self) -> bool:
        """Whether masked stores may take a part of a vector: one that lies in registers. Where each element has a bias
        of its own, there is none behind the last one."""
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        if any(is_bias(load) and uses(load.indices[0], self.a) for load in loads):
            return False
        loads = [load for load in loads if not is_bias(load)]
        able = 1 <= self._store_stride <= MAX_STRIDE and str(self.store.buffer.dtype) in self.masked
        return able and all(str(load.source.scope()) == "local" for load in loads)

    @property
    def _store_stride(self) -> int:
        """The distance of neighbours in the copy; 0 if they have none."""
        return step_of(self.store.indices, self.a) or 0

    def _known(self, begin: int, size: int) -> list[int] | None:
        """Which lanes of a vector are stored, if that is known."""
        holds = [self._holds_at(begin + lane) for lane in range(size)]
        return None if None in holds else [lane for lane, each in enumerate(holds) if each]

    def _holds_at(self, element: int) -> bool | None:
        """Whether an element is stored; None if that is not known."""
        found = Analyzer().simplify(tirx.all(*(replaced(each, {self.a: index(element)}) for each in self.conditions)))
        return bool(found.value) if isinstance(found, tirx.IntImm) else None

    def _masked(self, begin: tvm.ir.Expr, size: int, stored: Collection[int]) -> tirx.Stmt:
        """A vector of which some lanes are stored."""
        if len(stored) in (0, size):
            return self._vector(self.store, begin, size) if stored else tirx.Evaluate(0)
        lane, dtype = tirx.Var("lane", "int64"), str(self.store.buffer.dtype)
        lanes = tirx.decl_buffer((size,), dtype, "lanes", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
        store = replaced(self.store, {self.a: begin + lane})
        value = tirx.BufferStore(lanes, store.value, [lane])
        place = tirx.Ramp(replaced(self.store.indices[0], {self.a: begin}), index(self._store_stride), size)
        vector = tirx.BufferLoad(lanes, [tirx.Ramp(index(0), index(1), size)])
        return tirx.SeqStmt(
            [
                tirx.AllocBuffer(lanes, keep),
                tirx.For(lane, 0, size, tirx.ForKind.VECTORIZED, value),
                *masked_stores(self.store.buffer, place, vector, stored),
            ]
        )

    def _vector(self, store: tirx.BufferStore, begin: tvm.ir.Expr, size: int) -> tirx.Stmt:
        if size == 1:
            return replaced(store, {self.a: begin})
        lane = tirx.Var("lane", "int64")
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if self.stride > 1 and loads:
            return self._picked(store, loads[0], begin)
        return tirx.For(lane, 0, size, tirx.ForKind.VECTORIZED, replaced(store, {self.a: begin + lane}))

    def _picked(self, store: tirx.BufferStore, load: tvm.ir.TensorLoad, begin: tvm.ir.Expr) -> tirx.Stmt:
        """The vector at `begin` of what a store makes of strided elements; `load` is what it loads."""
        dtype, side, lane = str(load.source.dtype), self.side, tirx.Var("lane", "int64")
        lanes = tirx.decl_buffer((side,), dtype, "lanes", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
        first = replaced(load.indices[0], {self.a: begin})
        begins, taken = shuffles.strided(side, self.stride)
        loaded = [tirx.BufferLoad(load.source, [tirx.Ramp(first + ahead, index(1), side)]) for ahead in begins]
        picked = tirx.Shuffle(loaded, [tirx.IntImm("int32", element) for element in taken])
        value = structural_map(store.value, (tvm.ir.TensorLoad, lambda _: tirx.BufferLoad(lanes, [lane])))
        stored = replaced(tirx.BufferStore(store.buffer, value, store.indices), {self.a: begin + lane})
        return tirx.SeqStmt(
            [
                tirx.AllocBuffer(lanes, keep),
                tirx.BufferStore(lanes, picked, [tirx.Ramp(index(0), index(1), side)]),
                tirx.For(lane, 0, side, tirx.ForKind.VECTORIZED, stored),
            ]
        )

    def _loaded(self, load: tvm.ir.TensorLoad) -> tirx.Stmt:
        """A row that is stored in any case, by vectors; zeros if the conditions that hold for all of it are false."""
        value, store = self.store.value, self.store
        if not is_guarded(value):
            return self._over_row(lambda begin: self._vector(store, begin, self.side))
        outer, own = shared_and_own(value, [self.a])
        choosing = [undivided(each, self.a) for each in own]
        row = self._over_row(lambda begin: self._chosen(load, begin, choosing))
        if not outer:
            return row
        zero = tirx.BufferStore(store.buffer, value.args[2], store.indices)
        return tirx.IfThenElse(
            tirx.all(*outer), row, self._over_row(lambda begin: self._vector(zero, begin, self.side))
        )

    def _without_overlap(self) -> tirx.Stmt:
        """A row by vectors that do not overlap: whole ones, then shorter ones, then single elements."""
        whole, number = self.extent // self.side, tirx.Var("number", "int64")
        begin = whole * self.side
        stores = [self._vector(self.store, index(at), self.side) for at in range(0, begin, self.side)]
        if whole > _MOST_UNROLLED:
            each = self._vector(self.store, number * self.side, self.side)
            stores = [tirx.For(number, 0, whole, tirx.ForKind.SERIAL, each)]
        while begin < self.extent:
            size = next((side for side in SIDES if side <= self.extent - begin), 1)
            stores.append(self._vector(self.store, index(begin), size))
            begin += size
        return sequence(stores)

    def _over_row(self, vector: Callable[[tvm.ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """All vectors of a row; if they are many, those between the first and the last one in a loop."""
        begins = begins_of(self.extent, self.side)
        if len(begins) <= _MOST_UNROLLED:  # LLVM then knows which lanes are padding
            return sequence([vector(index(begin)) for begin in begins])
        number = tirx.Var("number", "int64")
        middle = tirx.For(number, 0, len(begins) - 2, tirx.ForKind.SERIAL, vector((number + 1) * self.side))
        return tirx.SeqStmt([vector(index(begins[0])), middle, vector(index(begins[-1]))])

    def _chosen(self, load: tvm.ir.TensorLoad, begin: tvm.ir.Expr, choosing: Sequence[tvm.ir.Expr]) -> tirx.Stmt:
        """One vector: a plain copy if the conditions hold for both ends. Otherwise all lanes are loaded and some are
        replaced by zeros, if all lie in the buffer; else it is copied element by element."""
        value, store = self.store.value, self.store
        data = self._vector(tirx.BufferStore(store.buffer, value.args[1], store.indices), begin, self.side)
        holds = self._hold_at_ends(begin, choosing)
        if isinstance(holds, tirx.IntImm) and holds.value:
            return data
        select = tirx.BufferStore(store.buffer, tirx.Select(tirx.all(*choosing), *value.args[1:]), store.indices)
        first = replaced(load.indices[0], {self.a: begin})
        last = first + self.stride * (self.side - 1)
        inside = tirx.all(first >= 0, last < prod(map(int, load.source.shape)))
        lane = tirx.Var("lane", "int64")
        by_element = tirx.For(lane, 0, self.side, tirx.ForKind.SERIAL, replaced(store, {self.a: begin + lane}))
        chosen = tirx.IfThenElse(inside, self._vector(select, begin, self.side), by_element)
        return tirx.IfThenElse(holds, data, chosen) if holds is not None else chosen

    def _hold_at_ends(self, begin: tvm.ir.Expr, conditions: Sequence[tvm.ir.Expr]) -> tvm.ir.Expr | None:
        """The condition that all `conditions` hold for the first and the last lane of the vector at `begin`, and so for
        all between them; None if there may be others between."""
        if not all(is_linear(each, self.a) for each in conditions):
            return None
        analyzer = Analyzer()
        for number in nodes(begin, tirx.Var):
            analyzer.bind(number, tvm.ir.Range(0, len(begins_of(self.extent, self.side)) - 2))
        ends = (replaced(each, {self.a: begin + end}) for each in conditions for end in (0, self.side - 1))
        return analyzer.simplify(tirx.all(tirx.const(True), *ends))
