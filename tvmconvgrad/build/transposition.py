"""A pass for copies whose source lies along one axis in memory and whose copy lies along another.

Element by element such a copy takes several cycles for each. Here it goes by square blocks of L x L elements: L vectors
are loaded along the source, transposed in registers, and stored along the copy. With L = 2**s, s rounds that interleave
vector i with vector i + L/2 transpose L vectors of L lanes: each round turns the index of (vector, lane), written in
binary, by one bit.

A schedule marks the outer of the two loops, the one along the source, by the attribute `TRANSPOSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.schedules.base import TRANSPOSE
from tvmconvgrad.schedules.rewriting import IF_THEN_ELSE, nodes, replaced, uses

_SIDES = (16, 8, 4)


def transposed(marked: tirx.AttrStmt) -> tirx.Stmt:
    """The loops that a schedule has marked, by blocks; loops marked "vectorized" are left for TVM to vectorise."""
    if marked.attr_key != TRANSPOSE:
        return marked
    outer = marked.body
    inner = _without_binds(outer.body) if isinstance(outer, tirx.For) else None
    store = _without_binds(inner.body) if isinstance(inner, tirx.For) else None
    if not isinstance(store, tirx.BufferStore):
        return outer
    return _Copy(outer, inner, store).blocked() or outer


def _without_binds(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement with values in place of the variables that are bound before it."""
    if not isinstance(statement, tirx.SeqStmt):
        return statement
    *binds, last = statement.seq
    if not all(isinstance(bind, tirx.Bind) for bind in binds):
        return statement
    for bind in reversed(binds):
        last = replaced(last, {bind.var: bind.value})
    return last


class _Copy:
    """copy[.. + b] = source[.. + a], for a in `outer`, b in `inner`, maybe zero on a condition."""

    def __init__(self, outer: tirx.For, inner: tirx.For, store: tirx.BufferStore) -> None:
        self.a, self.b = outer.loop_var, inner.loop_var
        self.extents = int(outer.extent), int(inner.extent)
        self.begins = outer.min, inner.min
        self.store = store
        self.side = next((side for side in _SIDES if side <= min(self.extents)), 1)

    def blocked(self) -> tirx.Stmt | None:
        """The copy by blocks, of which the last overlap where they must; None where that cannot be."""
        if self.side == 1 or not self._is_transposed():
            return None
        begins_a, begins_b = self._begins
        if self._is_in_registers():  # which have no indices that vary
            return tirx.SeqStmt([self._block(_index(a), _index(b)) for a in begins_a for b in begins_b])
        last_a, last_b = begins_a[-1], begins_b[-1]
        counts = len(begins_a), len(begins_b)
        return _loops(
            (self.a, self.b), counts, lambda a, b: self._block(self._begin(a, last_a), self._begin(b, last_b))
        )

    @property
    def _begins(self) -> list[list[int]]:
        """Where blocks begin along either axis; the last may overlap the one before."""
        return [[*range(0, extent - self.side, self.side), extent - self.side] for extent in self.extents]

    def _begin(self, number: tirx.Var, last: int) -> tvm.ir.Expr:
        return number * self.side if last % self.side == 0 else tirx.min(number * self.side, _index(last))

    def _is_in_registers(self) -> bool:
        (load,) = nodes(self.store.value, tvm.ir.TensorLoad)
        return str(load.source.scope()) == "local"

    def _is_transposed(self) -> bool:
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        if len(loads) != 1 or any(begin != 0 for begin in map(int, self.begins)):
            return False
        return _step(loads[0].indices, self.a) == 1 and _step(self.store.indices, self.b) == 1

    def _block(self, a: tvm.ir.Expr, b: tvm.ir.Expr) -> tirx.Stmt:
        """One block. Where a condition tells a vector's lanes apart, all of them are loaded nevertheless, if they lie
        in the buffer, and then chosen from."""
        value = self.store.value
        guarded = isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE)
        if not guarded or not uses(value.args[0], self.a):
            return self._transposed(a, b, value)
        (load,) = nodes(value.args[1], tvm.ir.TensorLoad)
        (place,) = load.indices
        first, last = (replaced(place, {self.a: a + i, self.b: b + i}) for i in (0, self.side - 1))
        inside = tirx.all(first >= 0, last < prod(map(int, load.source.shape)), _step([place], self.b) is not None)
        by_element = _loops(
            (self.a, self.b), (self.side, self.side), lambda i, j: replaced(self.store, {self.a: a + i, self.b: b + j})
        )
        return tirx.IfThenElse(inside, self._transposed(a, b, tirx.Select(*value.args)), by_element)

    def _transposed(self, a: tvm.ir.Expr, b: tvm.ir.Expr, value: tvm.ir.Expr) -> tirx.Stmt:
        side, dtype = self.side, str(self.store.buffer.dtype)
        rows = tirx.decl_buffer((side * side,), dtype, "rows", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
        statements: list[tirx.Stmt] = [tirx.AllocBuffer(rows, keep)]
        vectors: list[tvm.ir.Expr] = []
        for row in range(side):
            lane = tirx.Var("lane", "int64")
            element = replaced(value, {self.a: a + lane, self.b: b + row})
            load = tirx.BufferStore(rows, element, [lane + row * side])
            statements.append(tirx.For(lane, 0, side, tirx.ForKind.VECTORIZED, load))
            vectors.append(tirx.BufferLoad(rows, [tirx.Ramp(_index(row * side), _index(1), side)]))
        for _ in range(side.bit_length() - 1):
            halves = [(vectors[i], vectors[i + side // 2]) for i in range(side // 2)]
            vectors = []
            for pair in halves:
                for lanes in _interleaved(side):
                    name = tirx.Var("vector", f"{dtype}x{side}")
                    statements.append(tirx.Bind(name, tirx.Shuffle(list(pair), lanes)))
                    vectors.append(name)
        for column, vector in enumerate(vectors):
            (place,) = replaced(self.store, {self.a: a + column, self.b: b}).indices
            statements.append(tirx.BufferStore(self.store.buffer, vector, [tirx.Ramp(place, _index(1), side)]))
        return tirx.SeqStmt(statements)


def _loops(
    variables: Sequence[tirx.Var], extents: Sequence[int], body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]
) -> tirx.Stmt:
    """Two loops, with new variables of these names."""
    a, b = (tirx.Var(var.name, "int64") for var in variables)
    return tirx.For(a, 0, extents[0], tirx.ForKind.SERIAL, tirx.For(b, 0, extents[1], tirx.ForKind.SERIAL, body(a, b)))


def _interleaved(side: int) -> list[list[tirx.IntImm]]:
    """Which lanes of two vectors the first, and the second, half of their interleaving takes."""
    order = [lane for i in range(side) for lane in (i, side + i)]
    return [[tirx.IntImm("int32", lane) for lane in half] for half in (order[:side], order[side:])]


def _index(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _step(indices: Sequence[tvm.ir.Expr], var: tirx.Var) -> int | None:
    """How many elements an index moves by when a variable grows by one, if that is always the same."""
    if len(indices) != 1:
        return None
    moved = replaced(indices[0], {var: var + 1}) - indices[0]
    step = Analyzer().simplify(moved)
    return int(step) if isinstance(step, tirx.IntImm) else None
