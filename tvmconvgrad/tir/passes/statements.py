"""Helpers of the passes that vectorise loops: they take loops, conditions and indices apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tvm
from tvm import tirx
from tvm.ir import IRModule, StringImm
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.names import BIAS
from tvmconvgrad.tir.passes.limits import LEAST_SIDE
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes, replaced, uses

SIDES = (16, 8, LEAST_SIDE)
"""The numbers of elements that a vector may have."""


def is_whole(loop: tirx.For) -> bool:
    """Whether a loop begins at zero and has a constant extent."""
    bounds = (loop.min, loop.extent)
    return all(isinstance(bound, tirx.IntImm) for bound in bounds) and int(loop.min) == 0


def without_binds(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement with values in place of the variables that are bound before it."""
    if not isinstance(statement, tirx.SeqStmt):
        return statement
    *binds, last = statement.seq
    if not all(isinstance(bind, tirx.Bind) for bind in binds):
        return statement
    for bind in reversed(binds):
        last = replaced(last, {bind.var: bind.value})
    return last


def conjuncts(condition: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    """The conditions whose conjunction `condition` is."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def shared_and_own(value: tvm.ir.Expr, variables: Sequence[tirx.Var]) -> tuple[list[tvm.ir.Expr], list[tvm.ir.Expr]]:
    """The conditions that a value depends on: those without any of the variables, and those with some."""
    conditions = conjuncts(value.args[0]) if is_guarded(value) else []
    own = [each for each in conditions if any(uses(each, var) for var in variables)]
    return [each for each in conditions if not any(each.same_as(one) for one in own)], own


def undivided(condition: tvm.ir.Expr, var: tirx.Var) -> tvm.ir.Expr:
    """`bound <= e + var // k` as `(bound - e) * k <= var`, and `e + var // k <= bound` as `var < (bound - e + 1) * k`,
    for k > 0; so with <. The quotients of a vector's lanes are computed one by one, and are not linear. Other
    conditions stay as they are."""
    found = [each for each in nodes(condition, tirx.FloorDiv) if each.a.same_as(var)]
    positive = [each for each in found if isinstance(each.b, tirx.IntImm) and int(each.b) > 0]
    if len(found) != 1 or not positive or not isinstance(condition, tirx.LT | tirx.LE):
        return condition
    divisor, quotient = found[0].b, tirx.Var("quotient", "int64")
    difference = structural_map(condition.b - condition.a, (tirx.FloorDiv, _by_name(found[0], quotient)))
    # The condition is that this, with the quotient added or subtracted, is at least 0.
    rest = replaced(difference, {quotient: index(0)}) - int(isinstance(condition, tirx.LT))
    match step_of([difference], quotient):
        case 1:
            return -rest * divisor <= var
        case -1:
            return var < (rest + 1) * divisor
        case _:
            return condition


def _by_name(quotient: tirx.FloorDiv, name: tirx.Var) -> Callable[[tirx.FloorDiv], tvm.ir.Expr]:
    return lambda found: name if found.a.same_as(quotient.a) else found


def is_linear(condition: tvm.ir.Expr, var: tirx.Var) -> bool:
    """Whether a condition that holds for two values of `var` holds for all between them, since both of its sides are
    linear. Conditions that leave out gaps between taps are not (te/zeros.py)."""
    compares = isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE)
    return compares and step_of([condition.a - condition.b], var) is not None


def unless_nowhere(
    conditions: Sequence[tvm.ir.Expr], corners: Sequence[Mapping[tirx.Var, tvm.ir.Expr]], body: tirx.Stmt
) -> tirx.Stmt:
    """`body`, unless one of these linear conditions holds at no corner, and so nowhere between them: the body would do
    nothing then."""
    holding = [tirx.any(*(replaced(each, corner) for corner in corners)) for each in conditions]
    may = Analyzer().simplify(tirx.all(tirx.const(True), *holding))
    return body if isinstance(may, tirx.IntImm) and may.value else tirx.IfThenElse(may, body, None)


def sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    """Statements one after the other; a single one as it is."""
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def is_guarded(value: tvm.ir.Expr) -> bool:
    """Whether a value depends on a condition."""
    return isinstance(value, tvm.ir.Call) and value.op.same_as(IF_THEN_ELSE)


def adds_in_place(store: tirx.BufferStore) -> bool:
    """Whether a store adds to what is there: to store an element twice would add it twice."""
    return any(load.source.same_as(store.buffer) for load in nodes(store.value, tvm.ir.TensorLoad))


def is_bias(load: tvm.ir.TensorLoad) -> bool:
    """Whether a load is of the bias, which is added to what a store copies."""
    return str(load.source.name) == BIAS


def begins_of(extent: int, side: int) -> list[int]:
    """Where blocks of `side` elements begin along an axis; the last one may overlap the one before."""
    return [*range(0, extent - side, side), extent - side]


def index(value: int) -> tirx.IntImm:
    """A constant as an index."""
    return tirx.IntImm("int64", value)


def is_run(place: tvm.ir.Expr) -> bool:
    """Whether a vector's elements are contiguous in memory."""
    return isinstance(place, tirx.Ramp) and isinstance(place.stride, tirx.IntImm) and int(place.stride) == 1


def step_of(indices: Sequence[tvm.ir.Expr], var: tirx.Var) -> int | None:
    """By how much an index grows when a variable grows by one; None if that varies."""
    if len(indices) != 1:
        return None
    moved = replaced(indices[0], {var: var + 1}) - indices[0]
    step = Analyzer().simplify(moved)
    return int(step) if isinstance(step, tirx.IntImm) else None


def with_functions(module: IRModule, functions: Iterable[str]) -> IRModule:
    """`module` with functions in LLVM IR, which LLVM inlines into the programs that call them."""
    text = StringImm("".join(functions))

    def importing(program: tirx.PrimFunc) -> tirx.PrimFunc:
        return program.with_body(tirx.AttrStmt(text, "pragma_import_llvm", text, program.body))

    return IRModule({name: importing(program) for name, program in module.functions.items()}, attrs=module.attrs)
