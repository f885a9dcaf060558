"""A pass for copies whose source lies along one axis in memory and whose copy lies along another.

Element by element such a copy takes several cycles for each. Here it goes by square blocks of L x L elements: L vectors
are loaded along the source, transposed in registers, and stored along the copy. With L = 2**s, s rounds that interleave
vector i with vector i + L/2 transpose L vectors of L lanes: each round turns the index of (vector, lane), written in
binary, by one bit. Where the source takes every second element, or third, as a strided convolution does, all of them
are loaded, and the others left out.

A schedule marks the outer of the two loops, the one along the source, by the attribute `TRANSPOSE`. Where there is one
loop alone, along both source and copy, a condition that tells pads from data would be asked for each element. It is
copied by vectors of L elements then: a condition on what is loaded chooses lanes, and one on whether to store is asked
for the ends of a vector, then of its halves, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.schedules.base import TRANSPOSE
from tvmconvgrad.schedules.rewriting import IF_THEN_ELSE, nodes, replaced, uses

_SIDES = (16, 8, 4)
_MOST_APART = 4
_MOST_UNROLLED = 8


def transposed(marked: tirx.AttrStmt) -> tirx.Stmt:
    """The loops that a schedule has marked, by blocks; loops marked "vectorized" are left for TVM to vectorise."""
    if marked.attr_key != TRANSPOSE:
        return marked
    outer = marked.body
    inner = _without_binds(outer.body) if isinstance(outer, tirx.For) else None
    if isinstance(inner, tirx.BufferStore | tirx.IfThenElse) and _is_whole(outer):
        return _Row(outer, inner).by_vectors() or outer
    store = _without_binds(inner.body) if isinstance(inner, tirx.For) else None
    if not isinstance(store, tirx.BufferStore) or not all(map(_is_whole, (outer, inner))):
        return outer
    return _Copy(outer, inner, store).blocked() or outer


def _is_whole(loop: tirx.For) -> bool:
    """Whether a loop begins at zero and has a constant extent."""
    bounds = (loop.min, loop.extent)
    return all(isinstance(bound, tirx.IntImm) for bound in bounds) and int(loop.min) == 0


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


class _Row:
    """copy[.. + a] = source[.. + a], for a in `loop`, maybe zero on conditions, or only on conditions."""

    def __init__(self, loop: tirx.For, body: tirx.Stmt) -> None:
        self.a, self.extent = loop.loop_var, int(loop.extent)
        self.side = next((side for side in _SIDES if side <= self.extent), 1)
        self.conditions: list[tvm.ir.Expr] = []
        while isinstance(body, tirx.IfThenElse) and body.else_case is None:
            self.conditions.append(body.condition)
            body = _without_binds(body.then_case)
        self.store = body

    def by_vectors(self) -> tirx.Stmt | None:
        """The copy by vectors, of which the last may overlap the one before; None where that cannot be."""
        if self.side == 1 or not isinstance(self.store, tirx.BufferStore):
            return None
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        along = [_step(access.indices, self.a) == 1 for access in (self.store, *loads)]
        if len(loads) != 1 or not all(along):
            return None
        if not self.conditions:
            return self._loaded(loads[0])
        whole = self.extent % self.side == 0 and not _is_guarded(self.store.value)
        return self._stored(range(0, self.extent, self.side), self.side) if whole else None

    def _stored(self, begins: Sequence[int], size: int) -> tirx.Stmt:
        """Vectors of so many elements, if the conditions hold for the first and the last one; else each for itself,
        then its halves: those elements for which they do."""
        ends = (begins[0], begins[-1] + size - 1)
        holds = [replaced(each, {self.a: _index(end)}) for each in self.conditions for end in dict.fromkeys(ends)]
        condition = Analyzer().simplify(tirx.all(*holds))
        stores = _sequence([self._vector(self.store, _index(begin), size) for begin in begins])
        if isinstance(condition, tirx.IntImm) and condition.value:
            return stores
        if size == 1:
            return tirx.IfThenElse(condition, stores, None)
        half = size // 2
        parts = (
            [([begin], size) for begin in begins]
            if len(begins) > 1
            else [([begins[0]], half), ([begins[0] + half], half)]
        )
        return tirx.IfThenElse(condition, stores, tirx.SeqStmt([self._stored(*part) for part in parts]))

    def _vector(self, store: tirx.BufferStore, begin: tvm.ir.Expr, size: int) -> tirx.Stmt:
        if size == 1:
            return replaced(store, {self.a: begin})
        lane = tirx.Var("lane", "int64")
        return tirx.For(lane, 0, size, tirx.ForKind.VECTORIZED, replaced(store, {self.a: begin + lane}))

    def _loaded(self, load: tvm.ir.TensorLoad) -> tirx.Stmt:
        """All of a row that has no pads before or behind it, or none of it."""
        value, store = self.store.value, self.store
        if not _is_guarded(value):
            return self._over_row(lambda begin: self._vector(store, begin, self.side))
        found = _conjuncts(value.args[0])
        outer = [each for each in found if not uses(each, self.a)]
        choosing = [each for each in found if uses(each, self.a)]
        row = self._over_row(lambda begin: self._chosen(load, begin, choosing))
        if not outer:
            return row
        zero = tirx.BufferStore(store.buffer, value.args[2], store.indices)
        return tirx.IfThenElse(
            tirx.all(*outer), row, self._over_row(lambda begin: self._vector(zero, begin, self.side))
        )

    def _over_row(self, vector: Callable[[tvm.ir.Expr], tirx.Stmt]) -> tirx.Stmt:
        """All vectors of a row; those between the first and the last one in a loop, if they are many."""
        begins = _begins(self.extent, self.side)
        if len(begins) <= _MOST_UNROLLED:  # LLVM then knows the lanes that are pads
            return _sequence([vector(_index(begin)) for begin in begins])
        number = tirx.Var("number", "int64")
        middle = tirx.For(number, 0, len(begins) - 2, tirx.ForKind.SERIAL, vector((number + 1) * self.side))
        return tirx.SeqStmt([vector(_index(begins[0])), middle, vector(_index(begins[-1]))])

    def _chosen(self, load: tvm.ir.TensorLoad, begin: tvm.ir.Expr, choosing: Sequence[tvm.ir.Expr]) -> tirx.Stmt:
        """One vector. Lanes that a condition leaves out are loaded nevertheless, if they lie in the buffer."""
        value, store = self.store.value, self.store
        data = tirx.BufferStore(store.buffer, value.args[1], store.indices)
        if self._is_data(begin, choosing):
            return self._vector(data, begin, self.side)
        select = tirx.BufferStore(store.buffer, tirx.Select(tirx.all(*choosing), *value.args[1:]), store.indices)
        first = replaced(load.indices[0], {self.a: begin})
        inside = tirx.all(first >= 0, first + self.side <= prod(map(int, load.source.shape)))
        lane = tirx.Var("lane", "int64")
        by_element = tirx.For(lane, 0, self.side, tirx.ForKind.SERIAL, replaced(store, {self.a: begin + lane}))
        return tirx.IfThenElse(inside, self._vector(select, begin, self.side), by_element)

    def _is_data(self, begin: tvm.ir.Expr, choosing: Sequence[tvm.ir.Expr]) -> bool:
        """Whether the conditions hold for all lanes of a vector, whichever it is of those in the row's middle."""
        analyzer = Analyzer()
        count = len(_begins(self.extent, self.side))
        for number in nodes(begin, tirx.Var):
            analyzer.bind(number, tvm.ir.Range(0, count - 2))
        ends = (replaced(each, {self.a: begin + end}) for each in choosing for end in (0, self.side - 1))
        return all(analyzer.can_prove(each) for each in ends)


class _Copy:
    """copy[.. + b] = source[.. + a * apart], for a in `outer`, b in `inner`, maybe zero on a condition."""

    def __init__(self, outer: tirx.For, inner: tirx.For, store: tirx.BufferStore) -> None:
        self.a, self.b = outer.loop_var, inner.loop_var
        self.extents = int(outer.extent), int(inner.extent)
        self.store = store
        self.side = next((side for side in _SIDES if side <= min(self.extents)), 1)

    def blocked(self) -> tirx.Stmt | None:
        """The copy by blocks, of which the last overlap where they must; None where that cannot be."""
        if self.side == 1 or not self._is_transposed():
            return None
        begins_a, begins_b = (_begins(extent, self.side) for extent in self.extents)
        if self._is_in_registers():  # which have no indices that vary
            return _sequence([self._block(_index(a), _index(b)) for a in begins_a for b in begins_b])
        last_a, last_b = begins_a[-1], begins_b[-1]
        counts = len(begins_a), len(begins_b)
        return _loops(
            (self.a, self.b),
            counts,
            lambda a, b: self._block(_begin(a, last_a, self.side), _begin(b, last_b, self.side)),
        )

    def _is_in_registers(self) -> bool:
        return str(self._load.source.scope()) == "local"

    @property
    def _load(self) -> tvm.ir.TensorLoad:
        (load,) = nodes(self.store.value, tvm.ir.TensorLoad)
        return load

    @property
    def _apart(self) -> int:
        """How far neighbours along `a` lie apart in the source."""
        return _step(self._load.indices, self.a) or 0

    @property
    def _chooses(self) -> bool:
        """Whether a condition tells a vector's lanes apart."""
        return _is_guarded(self.store.value) and uses(self.store.value.args[0], self.a)

    def _is_transposed(self) -> bool:
        loads = nodes(self.store.value, tvm.ir.TensorLoad)
        if len(loads) != 1:
            return False
        most = 1 if self._chooses else _MOST_APART
        return 1 <= self._apart <= most and _step(self.store.indices, self.b) == 1

    def _block(self, a: tvm.ir.Expr, b: tvm.ir.Expr) -> tirx.Stmt:
        """One block. Lanes that a condition leaves out, and elements between those that are taken, are loaded
        nevertheless, if they lie in the buffer."""
        value, side = self.store.value, self.side
        if not self._chooses and self._apart == 1:
            return self._transposed(a, b, value)
        (place,) = self._load.indices
        first, last = (replaced(place, {self.a: a + i, self.b: b + i}) for i in (0, side - 1))
        size = prod(map(int, self._load.source.shape))
        inside = tirx.all(first >= 0, last + self._apart <= size, _step([place], self.b) is not None)
        by_element = _loops(
            (self.a, self.b), (side, side), lambda i, j: replaced(self.store, {self.a: a + i, self.b: b + j})
        )
        chosen = tirx.Select(*value.args) if self._chooses else value
        return tirx.IfThenElse(inside, self._transposed(a, b, chosen), by_element)

    def _transposed(self, a: tvm.ir.Expr, b: tvm.ir.Expr, value: tvm.ir.Expr) -> tirx.Stmt:
        side, apart, dtype = self.side, self._apart, str(self.store.buffer.dtype)
        rows = tirx.decl_buffer((side * side * apart,), dtype, "rows", scope="local")
        keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
        statements: list[tirx.Stmt] = [tirx.AllocBuffer(rows, keep)]

        def shuffled(parts: Sequence[tvm.ir.Expr], lanes: Sequence[tirx.IntImm]) -> tvm.ir.Expr:
            name = tirx.Var("vector", f"{dtype}x{side}")
            statements.append(tirx.Bind(name, tirx.Shuffle(list(parts), list(lanes))))
            return name

        vectors: list[tvm.ir.Expr] = []
        for row in range(side):
            parts = []
            for begin in range(row * apart * side, (row + 1) * apart * side, side):
                lane = tirx.Var("lane", "int64")
                element = self._element(value, a, b + row, lane + begin % (apart * side))
                load = tirx.BufferStore(rows, element, [lane + begin])
                statements.append(tirx.For(lane, 0, side, tirx.ForKind.VECTORIZED, load))
                parts.append(tirx.BufferLoad(rows, [tirx.Ramp(_index(begin), _index(1), side)]))
            vectors.append(parts[0] if apart == 1 else shuffled(parts, _lanes(range(0, apart * side, apart))))
        for _ in range(side.bit_length() - 1):
            halves = [(vectors[i], vectors[i + side // 2]) for i in range(side // 2)]
            vectors = [shuffled(pair, lanes) for pair in halves for lanes in _interleaved(side)]
        for column, vector in enumerate(vectors):
            (place,) = replaced(self.store, {self.a: a + column, self.b: b}).indices
            statements.append(tirx.BufferStore(self.store.buffer, vector, [tirx.Ramp(place, _index(1), side)]))
        return tirx.SeqStmt(statements)

    def _element(self, value: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr, offset: tvm.ir.Expr) -> tvm.ir.Expr:
        """What is made of the source's element so far behind that of (a, b)."""
        if self._apart == 1:
            return replaced(value, {self.a: a + offset, self.b: b})
        (place,) = self._load.indices

        def moved(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
            return tirx.BufferLoad(load.source, [replaced(place, {self.a: a, self.b: b}) + offset])

        return replaced(structural_map(value, (tvm.ir.TensorLoad, moved)), {self.b: b})


def _conjuncts(condition: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    """The conditions that all must hold."""
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _is_guarded(value: tvm.ir.Expr) -> bool:
    """Whether a value depends on a condition."""
    return isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE)


def _begins(extent: int, side: int) -> list[int]:
    """Where blocks begin along an axis; the last may overlap the one before."""
    return [*range(0, extent - side, side), extent - side]


def _begin(number: tirx.Var, last: int, side: int) -> tvm.ir.Expr:
    return number * side if last % side == 0 else tirx.min(number * side, _index(last))


def _loops(
    variables: Sequence[tirx.Var], extents: Sequence[int], body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]
) -> tirx.Stmt:
    """Two loops, with new variables of these names."""
    a, b = (tirx.Var(var.name, "int64") for var in variables)
    return tirx.For(a, 0, extents[0], tirx.ForKind.SERIAL, tirx.For(b, 0, extents[1], tirx.ForKind.SERIAL, body(a, b)))


def _interleaved(side: int) -> list[list[tirx.IntImm]]:
    """Which lanes of two vectors the first, and the second, half of their interleaving takes."""
    order = [lane for i in range(side) for lane in (i, side + i)]
    return [_lanes(half) for half in (order[:side], order[side:])]


def _lanes(numbers: Iterable[int]) -> list[tirx.IntImm]:
    return [tirx.IntImm("int32", lane) for lane in numbers]


def _index(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _step(indices: Sequence[tvm.ir.Expr], var: tirx.Var) -> int | None:
    """How many elements an index moves by when a variable grows by one, if that is always the same."""
    if len(indices) != 1:
        return None
    moved = replaced(indices[0], {var: var + 1}) - indices[0]
    step = Analyzer().simplify(moved)
    return int(step) if isinstance(step, tirx.IntImm) else None
