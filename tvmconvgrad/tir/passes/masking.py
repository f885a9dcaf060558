"""A pass that loads vectors in place though some of their lanes are padding, by masked loads.

A condition that differs between lanes would be tested for each lane, and a vector that is loaded whole might reach
beyond the tensor. LLVM's masked loads read only the lanes for which the condition holds, without a branch, and give
zeros for the others. For strided lanes, all elements between the first and the last are loaded, and the lanes are
picked from them by a shuffle. Elements of 16 bits are converted behind the load, zeros included.

A schedule annotates the loop over the lanes by `MASK`. A statement that would add only zeros is left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod

import tvm
from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.sym import Analyzer
from tvm_ffi import structural_equal
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.annotations import MASK
from tvmconvgrad.tir.passes.statements import conjuncts, index, step_of, without_binds
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, REINTERPRET, nodes, replaced, rewritten, uses

_OPERATIONS = {tirx.Add: operator.add, tirx.Mul: operator.mul}
_FAR = 1 << 30
"""Numbers beyond it, and numbers of lanes beyond it, might not add up in 32 bits."""
_DIFFERENCES: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.LT: lambda a, b: a - b,
    tirx.LE: lambda a, b: a - b - 1,
    tirx.GT: lambda a, b: b - a,
    tirx.GE: lambda a, b: b - a - 1,
}
"""For each comparison of integers, a difference that is negative if and only if the comparison holds."""


def with_masked_loads(module: IRModule) -> IRModule:
    """`module` with each annotated loop replaced by one statement on vectors, which adds a product to a sum."""
    known = {bind.var: bind.value for bind in nodes(module, tirx.Bind)}

    def masked(marked: tirx.AttrStmt) -> tirx.Stmt:
        if marked.attr_key != MASK:
            return marked
        loop = marked.body
        return Lanes(loop.loop_var, int(loop.extent), known).store(without_binds(loop.body))

    return rewritten(module, (tirx.AttrStmt, masked))


class Lanes:
    """Turns statements of one lane into statements on vectors: `lane` is the loop's variable, below `count`."""

    def __init__(self, lane: tirx.Var, count: int, known: Mapping[tirx.Var, Expr]) -> None:
        self.lane, self.count, self.known = lane, count, known
        self.analyzer = Analyzer()

    def store(self, statement: tirx.BufferStore) -> tirx.Stmt:
        """The store of all lanes; an empty statement if it would add only zeros."""
        if self.adds_zeros(statement.value):
            return tirx.Evaluate(0)
        return tirx.BufferStore(statement.buffer, self.vector(statement.value), [self._ramp(*statement.indices)])

    def adds_zeros(self, value: Expr) -> bool:
        """Whether a condition never holds, so that a product is zero."""
        return any(self.analyzer.can_prove(tirx.Not(guard.args[0])) for guard in guards_of(value))

    def vector(self, value: Expr) -> Expr:
        """The vector of a value's lanes."""
        if type(value) in _OPERATIONS:
            return _OPERATIONS[type(value)](self.vector(value.a), self.vector(value.b))
        if isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE):
            condition, loaded, _ = value.args
            loads = nodes(loaded, TensorLoad)
            strided = all(step_of(load.indices, self.lane) for load in loads)
            return self._converted(loaded, conjuncts(condition)) if strided else self._each(value)
        if isinstance(value, tirx.FloatImm):
            return tirx.Broadcast(value, self.count)
        return self._converted(value, [])

    def _converted(self, value: Expr, conditions: list[Expr]) -> Expr:
        """The vector of a load's lanes, which may be converted from 16 bits; zeros where a condition does not hold."""
        if isinstance(value, TensorLoad):
            stride = step_of(value.indices, self.lane)
            return self._load(value, conditions, stride) if stride else self._each(value)
        if isinstance(value, tirx.Cast):
            return tirx.Cast(f"{value.ty}x{self.count}", self._converted(value.value, conditions))
        if isinstance(value, tirx.LShift):  # from bf16's bits to those of f32
            return self._converted(value.a, conditions) << tirx.Broadcast(value.b, self.count)
        if isinstance(value, tvm.ir.Call) and value.op.same_as(REINTERPRET):
            return tirx.reinterpret(f"{value.ty}x{self.count}", self._converted(value.args[0], conditions))
        raise TypeError(f"cannot vectorise {value}: expected +, *, a constant, a load, a conversion, or if_then_else")

    def _load(self, load: TensorLoad, conditions: list[Expr], stride: int) -> Expr:
        (place,) = load.indices
        conditions = [condition for condition in conditions if not self.analyzer.can_prove(condition)]
        if stride == 1 and not conditions:
            return tirx.BufferLoad(load.source, [self._ramp(place)])
        if stride == 1:
            return self._part(load.source, self._first(place), [self._mask(each, 1, 0) for each in conditions])
        return self._picked(load, conditions, stride)

    def _picked(self, load: TensorLoad, conditions: list[Expr], stride: int) -> Expr:
        """Lanes with a stride. If their index modulo `stride` is known, whole blocks are loaded from a multiple of
        `stride` on, which neighbouring taps share; otherwise only the lanes' elements are."""
        count, first = self.count, self._first(load.indices[0])
        whole = first
        while any(var in self.known for var in nodes(whole, tirx.Var)):
            whole = replaced(whole, self.known)
        begin = replaced(whole, {var: index(0) for var in nodes(whole, tirx.Var)})
        remainder = int(self.analyzer.simplify(begin)) % stride
        in_blocks = self.analyzer.can_prove_equal((whole - remainder) % stride, index(0))
        if not in_blocks or prod(map(int, load.source.shape)) % stride:
            remainder, in_blocks = 0, False
        parts = []
        for begin in range(0, stride * count, count):
            masks = [self._mask(condition, stride, begin) for condition in conditions]
            if not in_blocks:
                elements = tirx.Ramp(index(begin), index(1), count)
                masks.append(tirx.EQ(elements % _all(stride, count), _all(0, count)))
            parts.append(self._part(load.source, self.analyzer.simplify(first - remainder + begin), masks))
        lanes = range(remainder, stride * count, stride)
        return _shuffled(parts, lanes)

    def _part(self, source: tirx.Buffer, first: Expr, masks: list[Expr]) -> Expr:
        """A vector of contiguous elements from `first` on, zero where one of the masks is false."""
        if not masks:
            return tirx.BufferLoad(source, [tirx.Ramp(first, index(1), self.count)])
        mask = reduce(tirx.And, masks)
        zero = tirx.Broadcast(tirx.const(0, str(source.dtype)), self.count)
        address = tirx.address_of(tirx.BufferLoad(source, [first]))
        return tirx.call_llvm_pure_intrin(f"{source.dtype}x{self.count}", "llvm.masked.load", address, mask, zero)

    def _mask(self, condition: Expr, stride: int, begin: int) -> Expr:
        """A condition as a mask, for a vector of elements from the `begin`-th on; each lane has `stride`."""
        if not uses(condition, self.lane):
            return tirx.Broadcast(condition, self.count)
        linear = self._linear(condition)
        if linear is None:
            return self._each(condition, stride, begin)
        first, step = linear
        return self._are_negative(first, [step * ((begin + lane) // stride) for lane in range(self.count)])

    def _are_negative(self, first: Expr, lanes: list[int]) -> Expr:
        """For each lane, whether `first` plus the lane's number is negative, in 32 bits: a vector of 64-bit numbers
        takes two registers. A `first` that is far from zero is replaced by a nearer one of the same sign."""
        dtype, near = "int64", first
        if max(map(abs, lanes)) < _FAR:
            dtype = "int32"
            near = tirx.Cast(dtype, self.analyzer.simplify(tirx.min(tirx.max(first, index(-_FAR)), index(_FAR))))
        numbers = _shuffled([tirx.IntImm(dtype, lane) for lane in lanes], range(self.count))
        return tirx.Broadcast(near, self.count) + numbers < tirx.Broadcast(tirx.IntImm(dtype, 0), self.count)

    def _each(self, value: Expr, stride: int = 1, begin: int = 0) -> Expr:
        """A value that is not linear in the lane, computed lane by lane; one without the lane, once."""
        if not uses(value, self.lane):
            return tirx.Broadcast(value, self.count)
        numbers = [(begin + number) // stride for number in range(self.count)]
        parts = [self.analyzer.simplify(replaced(value, {self.lane: index(number)})) for number in numbers]
        return _shuffled(parts, range(self.count))

    def _linear(self, condition: Expr) -> tuple[Expr, int] | None:
        """The first value, and the step from lane to lane, of numbers that are negative where the condition holds; None
        if none are found."""
        if type(condition) not in _DIFFERENCES:
            return None
        below = self._without_quotients(_DIFFERENCES[type(condition)](condition.a, condition.b))
        step = None if below is None else step_of([below], self.lane)
        return None if below is None or step is None else (self._first(below), step)

    def _without_quotients(self, below: Expr) -> Expr | None:
        """An expression that is negative where `below` is. A quotient's dividend may have quotients, too."""
        quotient = tirx.Var("quotient", "int64")
        found: list[tirx.FloorDiv] = []

        def replacing(division: tirx.FloorDiv) -> Expr:
            if not uses(division, self.lane):
                return division
            found.append(division)
            return quotient

        rest = structural_map(below, (tirx.FloorDiv, replacing), order="pre")
        if not found:
            return below
        if any(not structural_equal(found[0], other) for other in found[1:]):
            return None
        begin, inner, by = replaced(rest, {quotient: index(0)}), found[0].a, found[0].b
        # a + i // b < 0  is  a * b + i < 0;  a - i // b < 0  is  (a + 1) * b - i - 1 < 0
        multiplied = {1: begin * by + inner, -1: (begin + 1) * by - inner - 1}
        step = step_of([rest], quotient)
        return self._without_quotients(multiplied[step]) if step in multiplied else None

    def _ramp(self, place: Expr) -> Expr:
        return tirx.Ramp(self._first(place), index(1), self.count)

    def _first(self, place: Expr) -> Expr:
        """An index at the first lane."""
        return self.analyzer.simplify(replaced(place, {self.lane: index(0)}))


def guards_of(value: Expr) -> list[tvm.ir.Call]:
    """What of a value is zero under a condition."""
    return [call for call in nodes(value, tvm.ir.Call) if call.op.same_as(IF_THEN_ELSE)]


def _shuffled(parts: list[Expr], lanes: Sequence[int]) -> Expr:
    """The vector of these lanes of all parts, one after the other."""
    return tirx.Shuffle(parts, [tirx.IntImm("int32", lane) for lane in lanes])


def _all(value: int, count: int) -> Expr:
    return tirx.Broadcast(index(value), count)
