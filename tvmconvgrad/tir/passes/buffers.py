"""Passes on buffers: what LLVM is promised of their addresses, which lie on the stack, and where those begin."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import DataType, tirx
from tvm.ir import Expr, IRModule, TensorLoad

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES
from tvmconvgrad.tir.passes.statements import index, with_functions
from tvmconvgrad.tir.rewriting import nodes, rewritten

LARGEST_TILE_BYTES = 4096
"""Buffers of at most so many bytes lie on the stack."""

_ELEMENTS_TO_LINE = """
define i64 @elements_to_line(ptr %array) {{
  %address = ptrtoint ptr %array to i64
  %negative = sub i64 0, %address
  %bytes = and i64 %negative, {last}
  %elements = lshr i64 %bytes, 2
  ret i64 %elements
}}
"""
"""How many f32 of an array come before the first that begins a cache line."""


def aligned_to_elements(statement: tirx.AttrStmt) -> tirx.AttrStmt:
    """An alignment that is promised to LLVM, reduced to that of an element: tensors may have any address."""
    if statement.attr_key != "storage_alignment":
        return statement
    return tirx.AttrStmt(statement.node, statement.attr_key, tirx.IntImm("int32", 1), statement.body)


def kept_on_stack(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
    """An allocation, on the stack if it is small, as register tiles are: LLVM turns these into registers."""
    element = DataType(str(statement.buffer.dtype))
    size = prod(int(extent) for extent in statement.buffer.shape) * element.lanes * element.bits // 8
    if size > LARGEST_TILE_BYTES:
        return statement
    return tirx.AllocBuffer(statement.buffer, {"disable_lower_builtin": tirx.IntImm("int32", 1)})


def with_arrays_in_lines(module: IRModule, arrays: Sequence[tirx.Buffer]) -> IRModule:
    """`module` with arrays of f32 on the stack that begin a cache line: a row that is stored from a tile register is a
    line long. TVM aligns the stack's arrays to 16 bytes at most. So each gets a line less one element more, and begins
    behind as many elements as the next line is away."""
    declared = nodes(module, tirx.DeclBuffer)  # over memory that has been allocated for another array, or for itself
    allocated_as = {each.buffer: each.data.args[0] for each in declared if _find(each.buffer, arrays) is not None}
    memory = [allocated_as.get(array, array) for array in arrays]
    if any(_find(each, memory[:at]) is not None for at, each in enumerate(memory)):
        raise RuntimeError("two arrays of tiles lie in the same memory")
    begins = [tirx.Var(f"{array.name}_begin", "int64") for array in arrays]

    def allocate(statement: tirx.AllocBuffer) -> tirx.Stmt:
        at = _find(statement.buffer, memory)
        if at is None:
            return statement
        elements = int(statement.buffer.shape[0]) + CACHE_LINE // F32_BYTES - 1
        longer = tirx.decl_buffer((elements,), "float32", statement.buffer.name, scope=statement.buffer.scope())
        first = tirx.address_of(tirx.BufferLoad(longer, [index(0)]))
        return tirx.SeqStmt(
            [
                tirx.AllocBuffer(longer, statement.annotations),
                tirx.DeclBuffer(statement.buffer, data=longer.data),
                tirx.Bind(begins[at], tirx.call_extern("int64", "elements_to_line", first)),
            ]
        )

    def moved(array: tirx.Buffer, place: Expr) -> list[Expr]:
        at = _find(array, arrays)
        if at is None:
            return [place]
        if isinstance(place, tirx.Ramp):
            return [tirx.Ramp(place.base + begins[at], place.stride, place.lanes)]
        return [place + begins[at]]

    def load(found: TensorLoad) -> TensorLoad:
        return tirx.BufferLoad(found.source, moved(found.source, *found.indices))

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(found.buffer, found.value, moved(found.buffer, *found.indices))

    moving = rewritten(module, (TensorLoad, load), (tirx.BufferStore, store))
    functions = [_ELEMENTS_TO_LINE.format(last=CACHE_LINE - 1)]
    return with_functions(rewritten(moving, (tirx.AllocBuffer, allocate)), functions)


def _find(buffer: tirx.Buffer, among: Sequence[tirx.Buffer]) -> int | None:
    """Which of these buffers it is; None if it is none of them."""
    return next((at for at, each in enumerate(among) if each.same_as(buffer)), None)
