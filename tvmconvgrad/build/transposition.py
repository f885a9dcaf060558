"""A pass for copies whose source lies along one axis in memory and whose copy lies along another.

Element by element such a copy takes several cycles for each. Here it goes by square blocks of L x L elements: L vectors
are loaded along the source, transposed in registers, and stored along the copy. With L = 2**s, s rounds that interleave
vector i with vector i + L/2 transpose L vectors of L lanes: each round turns the index of (vector, lane), written in
binary, by one bit.

A schedule marks the outer of the two loops, the one along the source, by the attribute `TRANSPOSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.schedules.base import TRANSPOSE
from tvmconvgrad.schedules.rewriting import nodes, replaced, uses

_SIDES = (16, 8, 4)


def transposed(marked: tirx.AttrStmt) -> tirx.Stmt:
    """The loops that a schedule has marked, by blocks; loops marked "vectorized" are left for TVM to vectorise."""
    if marked.attr_key != TRANSPOSE:
        return marked
    outer = marked.body
    inner = outer.body if isinstance(outer, tirx.For) else None
    if not isinstance(inner, tirx.For) or not isinstance(inner.body, tirx.BufferStore):
        return outer
    return _Copy(outer, inner, inner.body).blocked() or outer


class _Copy:
    """copy[.. + b] = source[.. + a], for a in `outer`, b in `inner`, maybe zero on a condition."""

    def __init__(self, outer: tirx.For, inner: tirx.For, store: tirx.BufferStore) -> None:
        self.a, self.b = outer.loop_var, inner.loop_var
        self.extents = int(outer.extent), int(inner.extent)
        self.begins = outer.min, inner.min
        self.store = store
        self.side = next((side for side in _SIDES if side <= min(self.extents)), 1)

    def blocked(self) -> tirx.Stmt | None:
        """The copy by blocks, and the rest of it as it was; None where that cannot be."""
        if self.side == 1 or not self._is_transposed():
            return None
        count_a, count_b = (extent // self.side for extent in self.extents)
        covered_a, covered_b = count_a * self.side, count_b * self.side
        parts = [self._loops((count_a, count_b), self._block)]
        if covered_b < self.extents[1]:
            parts.append(self._rest((0, covered_a), (covered_b, self.extents[1])))
        if covered_a < self.extents[0]:
            parts.append(self._rest((covered_a, self.extents[0]), (0, self.extents[1])))
        return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)

    def _is_transposed(self) -> bool:
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        if len(loads) != 1 or any(begin != 0 for begin in map(int, self.begins)):
            return False
        return _step(loads[0].indices, self.a) == 1 and _step(self.store.indices, self.b) == 1

    def _at(self, a: tvm.ir.Expr, b: tvm.ir.Expr, value: tvm.ir.Expr | None = None) -> tirx.BufferStore:
        """The store of one element, with another value if one is given."""
        store = self.store if value is None else tirx.BufferStore(self.store.buffer, value, self.store.indices)
        return replaced(store, {self.a: a, self.b: b})

    def _rest(self, a: tuple[int, int], b: tuple[int, int]) -> tirx.Stmt:
        """The loops over a part, element by element."""
        return self._loops((a[1] - a[0], b[1] - b[0]), lambda i, j: self._at(i + a[0], j + b[0]))

    def _loops(self, extents: Sequence[int], body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]) -> tirx.Stmt:
        a, b = (tirx.Var(var.name, "int64") for var in (self.a, self.b))
        inner = tirx.For(b, 0, extents[1], tirx.ForKind.SERIAL, body(a, b))
        return tirx.For(a, 0, extents[0], tirx.ForKind.SERIAL, inner)

    def _block(self, a: tirx.Var, b: tirx.Var) -> tirx.Stmt:
        """One block; where a condition depends on a vector's lane, by vectors only if it holds for all of them."""
        first_a, first_b = a * self.side, b * self.side
        value = self.store.value
        guarded = isinstance(value, tvm.ir.Call) and value.op.same_as(_IF_THEN_ELSE)
        if not guarded or not uses(value.args[0], self.a):
            return self._transposed(first_a, first_b, value)
        # Conditions are bounds of an interval: what holds at both ends holds between.
        corners = [(first_a + i, first_b + j) for i in (0, self.side - 1) for j in (0, self.side - 1)]
        inside = tirx.all(*(replaced(value.args[0], {self.a: i, self.b: j}) for i, j in corners))
        i, j = (tirx.Var(var.name, "int64") for var in (self.a, self.b))
        element = self._at(first_a + i, first_b + j)
        rows = tirx.For(j, 0, self.side, tirx.ForKind.SERIAL, element)
        by_element = tirx.For(i, 0, self.side, tirx.ForKind.SERIAL, rows)
        return tirx.IfThenElse(inside, self._transposed(first_a, first_b, value.args[1]), by_element)

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


_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


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
