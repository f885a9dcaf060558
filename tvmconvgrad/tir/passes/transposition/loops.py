"""A pass for transposing copies: the source is contiguous along one axis, and the copy along another.

Element by element such a copy takes several cycles for each. Here it goes by blocks of S x L elements
(copies.py chooses S and L): S vectors are loaded along the source, transposed in registers, and stored along
the copy (blocks.py).

* If a block is longer along the source than along the copy, a vector is stored in parts of S elements; if it is
  shorter, a vector is loaded in such parts. Two rows that are interleaved in the copy need one shuffle for each half.
* If the source is strided, as in a strided convolution, the elements between are loaded, too, and dropped. If the copy
  is, a vector's elements are stored with a stride (tir/passes/strided_stores.py).
* If some elements are not stored, as the surplus ones of a tile, the copy may be halved (parts.py).
* An element may be a pair of neighbours in the copy. In the source they are neighbours, too, or lie apart and are
  interleaved as they are loaded.

f16 that is converted is transposed before its conversion, since that is half as much to shuffle. It also avoids a
defect of LLVM 22: with both operands of `unpcklps` converted by `vcvtph2ps`, and the other half of their interleaving
unused, it converts the result of `vpunpcklwd` instead, which takes other lanes, and results are wrong.

A schedule annotates the outer of the two loops, the one along the source, by `TRANSPOSE`. A single annotated loop,
along both, copies a row (tir/passes/rows.py). An annotation above 1 is the number of steps of several outer loops,
which are fused here, where their indices are simple. If a schedule fuses them, TVM computes the indices from the fused
loop, and does not always see that the source is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby, product
from math import prod
from typing import NamedTuple, TypeAlias

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.annotations import TRANSPOSE
from tvmconvgrad.tir.passes.rows import Row
from tvmconvgrad.tir.passes.statements import begins_of, index, is_guarded, is_whole, sequence, step_of, without_binds
from tvmconvgrad.tir.passes.strided_stores import masked_types
from tvmconvgrad.tir.passes.transposition.blocks import stored_block, transposed_block
from tvmconvgrad.tir.passes.transposition.copies import TransposedCopy
from tvmconvgrad.tir.passes.transposition.parts import stored_in_part
from tvmconvgrad.tir.rewriting import replaced, rewritten

Block: TypeAlias = "Callable[[tvm.ir.Expr, tvm.ir.Expr], tirx.Stmt]"
"""Makes the block that begins at these two places, along `a` and along `b`."""


def with_transpositions(module: IRModule) -> IRModule:
    """`module` with the annotated loops, copied by blocks; loops of the kind "vectorized" are left for TVM to
    vectorise."""
    masked = masked_types(module)

    def transposed(marked: tirx.AttrStmt) -> tirx.Stmt:
        if marked.attr_key != TRANSPOSE:
            return marked
        return _by_blocks(_fused(marked.body, int(marked.value)), masked)

    return rewritten(module, (tirx.AttrStmt, transposed))


def _fused(outer: tirx.Stmt, steps: int) -> tirx.Stmt:
    """The outermost loops of a copy, which have so many steps together, as one loop."""
    loops: list[tirx.For] = []
    body = outer
    while isinstance(body, tirx.For) and prod(int(loop.extent) for loop in loops) < steps:
        loops.append(body)
        body = without_binds(body.body)
    if len(loops) < 2 or prod(int(loop.extent) for loop in loops) != steps:
        return outer
    step = tirx.Var(loops[0].loop_var.name, "int64")
    values: dict[tirx.Var, tvm.ir.Expr] = {}
    rest: tvm.ir.Expr = step
    for loop in reversed(loops[1:]):
        values[loop.loop_var], rest = rest % loop.extent, rest // loop.extent
    values[loops[0].loop_var] = rest
    return tirx.For(step, 0, steps, tirx.ForKind.SERIAL, _simplified(replaced(body, values)))


def _simplified(body: tirx.Stmt) -> tirx.Stmt:
    """A copy with simple indices: those of a vector's lanes are then seen to be contiguous."""
    simplify = Analyzer().simplify

    def load(found: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(found.source, [simplify(place) for place in found.indices])

    def store(found: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(found.buffer, found.value, [simplify(place) for place in found.indices])

    loaded = structural_map(body, (tvm.ir.TensorLoad, load))
    stored: tirx.Stmt = structural_map(loaded, (tirx.BufferStore, store))
    return stored


def _by_blocks(outer: tirx.Stmt, masked: Collection[str]) -> tirx.Stmt:
    """An annotated copy, which may be made under a condition, by blocks; `masked` are the types with masked stores."""
    if isinstance(outer, tirx.IfThenElse) and outer.else_case is None:
        return tirx.IfThenElse(outer.condition, _by_blocks(without_binds(outer.then_case), masked), None)
    inner = without_binds(outer.body) if isinstance(outer, tirx.For) else None
    if isinstance(inner, tirx.BufferStore | tirx.IfThenElse) and is_whole(outer):
        return Row(outer, inner, masked).by_vectors() or outer
    store = without_binds(inner.body) if isinstance(inner, tirx.For) else None
    pair = None
    if isinstance(store, tirx.For):
        pair, store = store, without_binds(store.body)
    loops = [outer, inner, *([pair] if pair is not None else [])]
    if not all(map(is_whole, loops)):
        return outer
    if isinstance(store, tirx.IfThenElse) and isinstance(inner, tirx.For) and pair is None:
        return stored_in_part((outer, inner), store, _blocked) or outer
    if not isinstance(store, tirx.BufferStore):
        return outer
    return _blocked(TransposedCopy(outer, inner, store, pair)) or outer


def _blocked(copy: TransposedCopy) -> tirx.Stmt | None:
    """The copy by blocks, the last of which may overlap the ones before; None if it has no such form."""
    if not copy.is_transposed() or copy.lanes == 1:
        return None
    if copy.adds:
        return _blocked_adding_once(copy) if copy.stride == 1 else None
    if not is_guarded(copy.store.value):
        return _each_block(copy, lambda a, b: transposed_block(copy, a, b, copy.store.value))
    _, loaded, instead = copy.store.value.args
    copied = _guarded_blocks(copy, loaded, instead)
    if not copy.shared:
        return copied
    filled = [tirx.Broadcast(instead, copy.lanes * copy.run)] * copy.rows
    zeros = _each_block(copy, lambda a, b: sequence(stored_block(copy, a, b, filled)))
    return tirx.IfThenElse(tirx.all(*copy.shared), copied, zeros)


def _guarded_blocks(copy: TransposedCopy, loaded: tvm.ir.Expr, instead: tvm.ir.Expr) -> tirx.Stmt:
    """All blocks; where the own conditions do not hold, elements are `instead`."""
    if not copy.own:
        return _each_block(copy, lambda a, b: transposed_block(copy, a, b, loaded))
    if not copy.chooses:  # rows are loaded, or not
        value = tirx.if_then_else(tirx.all(*copy.own), loaded, instead)
        return _each_block(copy, lambda a, b: transposed_block(copy, a, b, value))

    def whole(a: tvm.ir.Expr, b: tvm.ir.Expr) -> tirx.Stmt:
        return transposed_block(copy, a, b, loaded)

    def partial(a: tvm.ir.Expr, b: tvm.ir.Expr) -> tirx.Stmt:
        chosen, holds = _chosen(copy, a, b, loaded, instead), copy.all_hold(a, b)
        return chosen if holds is None or not copy.own_vary else tirx.IfThenElse(holds, whole(a, b), chosen)

    return _each_block(copy, whole, partial)


def _each_block(copy: TransposedCopy, whole: Block, partial: Block | None = None) -> tirx.Stmt:
    """What `whole` makes of the begins of each block, along `a` and along `b`; `partial`, if given, of those for which
    a condition may not hold."""
    begins_a, begins_b = (begins_of(*block) for block in zip(copy.extents, copy.block))
    parts: list[tirx.Stmt] = []
    for holds, run in groupby(begins_a, key=lambda a: partial is None or copy.holds_always(a)):
        first, *others = run
        block = whole if partial is None or holds else partial
        if copy.is_in_registers():  # registers have constant indices only
            parts += [block(index(a), index(b)) for a in (first, *others) for b in begins_b]
        else:
            parts.append(_block_loops(copy, block, [first, *others], begins_b))
    return sequence(parts)


def _block_loops(copy: TransposedCopy, block: Block, begins_a: Sequence[int], begins_b: Sequence[int]) -> tirx.Stmt:
    """Loops over blocks with these begins."""
    (side_a, side_b), counts = copy.block, (len(begins_a), len(begins_b))
    return _loops(
        (copy.a, copy.b),
        counts,
        lambda a, b: block(_begin(a, begins_a, side_a), _begin(b, begins_b, side_b)),
    )


def _blocked_adding_once(copy: TransposedCopy) -> tirx.Stmt:
    """The copy by blocks that do not overlap, since each element is added once: the last block along an axis leaves
    out what the one before it has added."""
    segments = (_segments(*axis) for axis in zip(copy.extents, copy.block))
    return sequence([_added(copy, along_a, along_b) for along_a, along_b in product(*segments)])


def _added(copy: TransposedCopy, along_a: _Segment, along_b: _Segment) -> tirx.Stmt:
    """The blocks of a segment along each axis."""
    skip = along_a.skip, along_b.skip
    begins = [
        [index(along.first + number * side) for number in range(along.blocks)]
        for along, side in zip((along_a, along_b), copy.block)
    ]
    if copy.is_in_registers():
        return sequence([transposed_block(copy, a, b, copy.load, skip) for a, b in product(*begins)])
    (first_a, *_), (first_b, *_) = begins
    return _loops(
        (copy.a, copy.b),
        (along_a.blocks, along_b.blocks),
        lambda a, b: transposed_block(copy, a * copy.block[0] + first_a, b * copy.block[1] + first_b, copy.load, skip),
    )


def _chosen(
    copy: TransposedCopy, a: tvm.ir.Expr, b: tvm.ir.Expr, loaded: tvm.ir.Expr, instead: tvm.ir.Expr
) -> tirx.Stmt:
    """One block. Lanes that a condition replaces are loaded, too, if they lie in the buffer; otherwise the block is
    copied element by element."""
    (place,) = copy.load.indices
    ends = (0, 0), (copy.block[0] - 1, copy.block[1] - 1)
    first, last = (replaced(place, {copy.a: a + i, copy.b: b + j} | copy.in_pair(0)) for i, j in ends)
    size = prod(map(int, copy.load.source.shape))
    inside = tirx.all(first >= 0, last + copy.run <= size, step_of([place], copy.b) is not None)
    by_element = _loops(
        (copy.a, copy.b),
        copy.block,
        lambda i, j: sequence(
            [replaced(copy.store, {copy.a: a + i, copy.b: b + j} | copy.in_pair(k)) for k in range(copy.run)]
        ),
    )
    if copy.stride == 1:
        selected = transposed_block(copy, a, b, tirx.Select(tirx.all(*copy.own), loaded, instead))
    else:
        selected = transposed_block(copy, a, b, loaded, instead=instead)
    return tirx.IfThenElse(inside, selected, by_element)


class _Segment(NamedTuple):
    """So many blocks along an axis from an element on, of which each leaves out its first `skip` elements."""

    first: int
    blocks: int
    skip: int


def _segments(extent: int, side: int) -> list[_Segment]:
    """An axis by blocks of `side` elements: whole ones, then one that reaches back."""
    whole, rest = divmod(extent, side)
    return [_Segment(0, whole, 0), *([_Segment(extent - side, 1, side - rest)] if rest else [])]


def _begin(number: tirx.Var, begins: Sequence[int], side: int) -> tvm.ir.Expr:
    """Where a block begins; the last one may overlap the one before it."""
    first, last = begins[0], begins[-1]
    begin = number * side + first
    return begin if (last - first) % side == 0 else tirx.min(begin, index(last))


def _loops(
    variables: Sequence[tirx.Var], extents: Sequence[int], body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]
) -> tirx.Stmt:
    """Two loops, with new variables of these names."""
    a, b = (tirx.Var(var.name, "int64") for var in variables)
    return tirx.For(a, 0, extents[0], tirx.ForKind.SERIAL, tirx.For(b, 0, extents[1], tirx.ForKind.SERIAL, body(a, b)))
