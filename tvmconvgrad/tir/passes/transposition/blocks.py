"""One block of a transposing copy: vectors are loaded along the source, transposed in registers, and stored along the
copy (tir/passes/shuffles.py has the shuffles)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.passes import shuffles
from tvmconvgrad.tir.passes.statements import index, is_guarded
from tvmconvgrad.tir.passes.transposition.copies import TransposedCopy
from tvmconvgrad.tir.rewriting import replaced


def transposed_block(
    copy: TransposedCopy,
    a: tvm.ir.Expr,
    b: tvm.ir.Expr,
    value: tvm.ir.Expr,
    skip: tuple[int, int] = (0, 0),
    instead: tvm.ir.Expr | None = None,
) -> tirx.Stmt:
    """One block of a `value` for which no condition is tested. What is added is not added to the first elements
    along `a` and along `b` that `skip` counts. If a value is given `instead`, elements for which an own condition does
    not hold are replaced by it, after the elements between strided ones are dropped."""
    value = _as_stored_in_f16(value)
    dtype = str(value.ty)
    instead = None if instead is None else instead.astype(dtype)
    memory = tirx.decl_buffer((copy.rows * copy.lanes * copy.run * copy.stride,), dtype, "rows", scope="local")
    keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}  # on the stack, that is in registers
    statements: list[tirx.Stmt] = [tirx.AllocBuffer(memory, keep)]

    def shuffled(parts: Sequence[tvm.ir.Expr], lanes: Iterable[int]) -> tvm.ir.Expr:
        numbers = _indices(lanes)
        name = tirx.Var("vector", f"{dtype}x{len(numbers)}")
        statements.append(tirx.Bind(name, tirx.Shuffle(list(parts), numbers)))
        return name

    def shuffled_elements(one: tvm.ir.Expr, other: tvm.ir.Expr, lanes: Sequence[int]) -> tvm.ir.Expr:
        return shuffled([one, other], [lane * copy.run + i for lane in lanes for i in range(copy.run)])

    vectors = []
    for row in range(copy.rows):
        loads, parts = _loaded(copy, memory, row, value, a, b)
        statements += loads
        vector = parts[0] if len(parts) == 1 else shuffled(parts, _taken(copy))
        if instead is not None:
            choice, vector = _with_lanes_replaced(copy, vector, instead, a, b + row)
            statements += choice
        vectors.append(vector)
    if copy.rows == 2:
        one, other = vectors
        vectors = [shuffled_elements(one, other, lanes) for lanes in shuffles.interleaved(copy.lanes)]
    else:
        bits = tvm.DataType(dtype).bits * copy.run
        vectors = shuffles.transposed(vectors, copy.lanes, bits, shuffled_elements)
    return tirx.SeqStmt(statements + stored_block(copy, a, b, vectors, skip))


def stored_block(
    copy: TransposedCopy, a: tvm.ir.Expr, b: tvm.ir.Expr, vectors: Sequence[tvm.ir.Expr], skip: tuple[int, int] = (0, 0)
) -> list[tirx.Stmt]:
    """The stores of a block's transposed vectors, in parts that are contiguous along `b`."""
    statements: list[tirx.Stmt] = []
    length = copy.lanes if copy.rows == 2 else min(copy.block[1], copy.lanes)
    for number, vector in enumerate(vectors):
        for begin in range(0, copy.lanes, length):
            lanes = range(begin * copy.run, (begin + length) * copy.run)
            part = vector if length == copy.lanes else tirx.Shuffle([vector], _indices(lanes))
            first = number * copy.lanes // 2 if copy.rows == 2 else number + begin
            (place,) = replaced(copy.store, {copy.a: a + first, copy.b: b} | copy.in_pair(0)).indices
            if copy.adds:
                per_a = 2 if copy.rows == 2 else length
                behind = max(0, skip[0] - first) * per_a + (0 if copy.rows == 2 else skip[1])
                statements += _sums(copy, part, place, length, behind)
                continue
            elements = tirx.Ramp(place, index(copy.stored_stride), length * copy.run)
            converted = part.astype(f"{copy.store.buffer.dtype}x{length * copy.run}")
            statements.append(tirx.BufferStore(copy.store.buffer, converted, [elements]))
    return statements


def _sums(copy: TransposedCopy, part: tvm.ir.Expr, place: tvm.ir.Expr, length: int, first: int) -> list[tirx.Stmt]:
    """Add a part of a vector, of `length` lanes, to what is at `place`, from its lane `first` on."""
    if first >= length:
        return []
    kind = tirx.ForKind.VECTORIZED if length - first > 1 else tirx.ForKind.SERIAL
    memory = tirx.decl_buffer((length,), str(copy.load.source.dtype), "part", scope="local")
    keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}
    lane = tirx.Var("lane", "int64")
    to = place + (lane + first) * copy.stored_stride

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        is_own = load.source.same_as(copy.store.buffer)
        return tirx.BufferLoad(copy.store.buffer, [to]) if is_own else tirx.BufferLoad(memory, [lane + first])

    value = structural_map(copy.store.value, (tvm.ir.TensorLoad, moved))
    store = tirx.BufferStore(copy.store.buffer, value, [to])
    return [
        tirx.AllocBuffer(memory, keep),
        tirx.BufferStore(memory, part, [tirx.Ramp(index(0), index(1), length)]),
        tirx.For(lane, 0, length - first, kind, store),
    ]


def _loaded(
    copy: TransposedCopy, memory: tirx.Buffer, row: int, value: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr
) -> tuple[list[tirx.Stmt], list[tvm.ir.Expr]]:
    """What loads a vector of a block, and the parts that it is loaded in: neighbours along `a`, of which only every
    so-many-th may be of use; of pairs that lie apart in the source, first one element of each, then the other."""
    statements: list[tirx.Stmt] = []
    parts: list[tvm.ir.Expr] = []
    along = min(copy.block[0], copy.lanes)
    length = along if copy.joins else along * copy.run
    aheads = range(copy.run) if copy.joins else shuffles.strided(length, copy.stride)[0]
    for begin in range(0, copy.lanes, along):
        for piece, ahead in enumerate(aheads):
            to = (row * copy.lanes + begin) * copy.run * copy.stride + piece * length
            lane = tirx.Var("lane", "int64")
            if copy.joins:
                element = replaced(value, {copy.a: a + lane, copy.b: b + (row + begin)} | copy.in_pair(ahead))
            else:
                element = _element(copy, value, a, b + (row + begin), lane + ahead)
            load = tirx.BufferStore(memory, element, [lane + to])
            statements.append(tirx.For(lane, 0, length, tirx.ForKind.VECTORIZED, load))
            parts.append(tirx.BufferLoad(memory, [tirx.Ramp(index(to), index(1), length)]))
    return statements, parts


def _with_lanes_replaced(
    copy: TransposedCopy, vector: tvm.ir.Expr, instead: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr
) -> tuple[list[tirx.Stmt], tvm.ir.Expr]:
    """The vector at (a, b) with `instead` in the lanes for which an own condition does not hold: statements, and the
    vector that they make."""
    picked, chosen = (
        tirx.decl_buffer((copy.lanes,), str(instead.ty), name, scope="local") for name in ("picked", "chosen")
    )
    keep = {"disable_lower_builtin": tirx.IntImm("int32", 1)}
    lane, whole = tirx.Var("lane", "int64"), tirx.Ramp(index(0), index(1), copy.lanes)
    holds = replaced(tirx.all(*copy.own), {copy.a: a + lane, copy.b: b})
    choice = tirx.BufferStore(chosen, tirx.Select(holds, tirx.BufferLoad(picked, [lane]), instead), [lane])
    statements = [
        tirx.AllocBuffer(picked, keep),
        tirx.AllocBuffer(chosen, keep),
        tirx.BufferStore(picked, vector, [whole]),
        tirx.For(lane, 0, copy.lanes, tirx.ForKind.VECTORIZED, choice),
    ]
    return statements, tirx.BufferLoad(chosen, [whole])


def _taken(copy: TransposedCopy) -> list[int]:
    """The lanes of a vector's parts that are its elements."""
    along = min(copy.block[0], copy.lanes)
    length = along * copy.run
    if copy.joins:
        lanes = [place * along + lane for lane in range(along) for place in range(copy.run)]
    else:
        _, lanes = shuffles.strided(length, copy.stride)
    parts = range(0, copy.lanes * copy.run * copy.stride, length * copy.stride)
    return [begin + lane for begin in parts for lane in lanes]


def _element(
    copy: TransposedCopy, value: tvm.ir.Expr, a: tvm.ir.Expr, b: tvm.ir.Expr, offset: tvm.ir.Expr
) -> tvm.ir.Expr:
    """What is made of the source's element so far behind that of (a, b)."""
    if copy.pair is not None:
        return replaced(value, {copy.a: a, copy.b: b, copy.pair: offset})
    if copy.stride == 1:
        return replaced(value, {copy.a: a + offset, copy.b: b})
    (place,) = copy.load.indices

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(load.source, [replaced(place, {copy.a: a, copy.b: b}) + offset])

    return replaced(structural_map(value, (tvm.ir.TensorLoad, moved)), {copy.b: b})


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


def _indices(lanes: Iterable[int]) -> list[tirx.IntImm]:
    return [tirx.IntImm("int32", lane) for lane in lanes]
