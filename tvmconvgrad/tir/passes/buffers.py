"""Passes on buffers: what LLVM is promised of their addresses, and which of them lie on the stack."""

from __future__ import annotations

from math import prod

from tvm import DataType, tirx

LARGEST_TILE_BYTES = 4096
"""Buffers of at most so many bytes lie on the stack."""


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
