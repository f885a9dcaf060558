"""A transposing copy of which only some elements are stored: tiles at the end of a row have surplus positions, and
others surplus channels.

    for a, b: if a < m and b < n: copy[.. + b] = source[.. + a]

If the conditions hold at the copy's corners, they hold everywhere, and it goes by blocks. Otherwise it is halved, and
each half is tested alone, down to parts that are too small for a block, whose elements are. So only what lies across an
end is copied by smaller blocks. This is done for tiles, which lie in registers or on the stack: for whole rows of a
scratch accumulator the halves would be too much code (0.4 s of building became 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.tir.passes.statements import (
    conjuncts,
    index,
    is_guarded,
    is_linear,
    sequence,
    undivided,
    unless_nowhere,
    without_binds,
)
from tvmconvgrad.tir.passes.transposition.copies import TransposedCopy
from tvmconvgrad.tir.rewriting import replaced, uses

Blocked: TypeAlias = Callable[[TransposedCopy], tirx.Stmt | None]
"""Makes a copy by blocks; None if it has no such form."""
Loops: TypeAlias = tuple[tirx.For, tirx.For]
Conditions: TypeAlias = Sequence[tvm.ir.Expr]


def stored_in_part(loops: Loops, body: tirx.Stmt, blocked: Blocked) -> tirx.Stmt | None:
    """The copy whose loops have a store under conditions inside; None if it has no such form."""
    conditions: list[tvm.ir.Expr] = []
    a, b = (loop.loop_var for loop in loops)
    while isinstance(body, tirx.IfThenElse) and body.else_case is None:
        conditions += [undivided(undivided(each, a), b) for each in conjuncts(body.condition)]
        body = without_binds(body.then_case)
    linear = all(is_linear(each, var) for each in conditions for var in (a, b))
    if not isinstance(body, tirx.BufferStore) or is_guarded(body.value) or not linear:
        return None
    copy = TransposedCopy(*loops, body)
    if not copy.loads or not copy.is_in_registers() or blocked(copy) is None:
        return None
    own = [each for each in conditions if uses(each, a) or uses(each, b)]
    others = [each for each in conditions if not any(each.same_as(one) for one in own)]
    halved = _halved(loops, body, own, blocked)
    return tirx.IfThenElse(tirx.all(*others), halved, None) if others else halved


def _halved(loops: Loops, store: tirx.BufferStore, conditions: Conditions, blocked: Blocked) -> tirx.Stmt:
    """The copy by blocks, or in halves."""
    ends = [sorted({0, int(loop.extent) - 1}) for loop in loops]
    corners = [_at(loops, places) for places in product(*ends)]
    left, holds = list[tvm.ir.Expr](), list[tvm.ir.Expr]()
    for each in conditions:
        found = [Analyzer().simplify(replaced(each, corner)) for corner in corners]
        known = [bool(each.value) for each in found if isinstance(each, tirx.IntImm)]
        if len(known) == len(corners) and not any(known):
            return tirx.Evaluate(0)  # nothing is stored
        if sum(known) < len(corners):
            left.append(each)
            holds += found
    copied = blocked(TransposedCopy(*loops, store))
    if copied is None:
        return _by_element(loops, store, left)
    if not left:
        return copied
    axis = 1 if any(uses(each, loops[1].loop_var) for each in left) else 0
    halves = _halves(loops, axis, store, left)
    parts = [_halved(half, moved, of_half, blocked) for half, moved, of_half in halves]
    rest = unless_nowhere(left, corners, tirx.SeqStmt(parts))
    return tirx.IfThenElse(Analyzer().simplify(tirx.all(*holds)), copied, rest)


def _halves(
    loops: Loops, axis: int, store: tirx.BufferStore, conditions: Conditions
) -> list[tuple[Loops, tirx.BufferStore, list[tvm.ir.Expr]]]:
    """Both halves of a copy along an axis, the first of which is a power of two: loops, store and conditions."""
    loop, halves = loops[axis], []
    extent = int(loop.extent)
    half = 1 << (extent - 1).bit_length() - 1
    for begin, size in ((0, half), (half, extent - half)):
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        part = tirx.For(var, index(0), index(size), loop.kind, loop.body)
        at = {loop.loop_var: var + begin}
        both = (part, loops[1]) if axis == 0 else (loops[0], part)
        halves.append((both, replaced(store, at), [replaced(each, at) for each in conditions]))
    return halves


def _by_element(loops: Loops, store: tirx.BufferStore, conditions: Conditions) -> tirx.Stmt:
    """The copy element by element, with constant indices, which registers need."""
    stores = []
    for places in product(*(range(int(loop.extent)) for loop in loops)):
        at = _at(loops, places)
        stored = replaced(store, at)
        holds = Analyzer().simplify(tirx.all(tirx.const(True), *(replaced(each, at) for each in conditions)))
        known = isinstance(holds, tirx.IntImm)
        if not known or holds.value:
            stores.append(stored if known else tirx.IfThenElse(holds, stored, None))
    return sequence(stores) if stores else tirx.Evaluate(0)


def _at(loops: Loops, places: Sequence[int]) -> dict[tirx.Var, tvm.ir.Expr]:
    """The values of the loops' variables at an element."""
    return {loop.loop_var: index(place) for loop, place in zip(loops, places)}
