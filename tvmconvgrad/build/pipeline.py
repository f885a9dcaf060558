"""TVM's lowering, with three changes.

A kernel takes tensors at any address. TVM promises LLVM that a tensor's memory is aligned to 64 bytes, and nothing
checks it: vector moves then crash on a NumPy array, which is often aligned to 16. Only elements are aligned in the code
made here; on today's CPUs unaligned moves cost nothing where the address happens to be aligned.

Indices stay 64-bit. Narrowed to 32 bits, each address needs a sign extension, LLVM computes them in vectors, and the
register tile spills: half of the speed.

Register tiles stay on the stack, which LLVM turns into registers. Above 1 KiB TVM would ask its runtime for each tile's
memory anew, for every tile.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import DataType, tirx
from tvm_ffi.structural import structural_map, structural_walk

NAME = "tvmconvgrad"
DISABLED = ("tirx.NarrowDataType",)
LARGEST_TILE_BYTES = 4096
_ALLOCATES = "tirx.LowerTVMBuiltin"
_ALLOCATE = tvm.ir.Op.get("tirx.TVMBackendAllocWorkspace")


def _align_to_elements(statement: tirx.AttrStmt) -> tirx.AttrStmt:
    if statement.attr_key != "storage_alignment":
        return statement
    return tirx.AttrStmt(statement.node, statement.attr_key, tirx.IntImm("int32", 1), statement.body)


def _align_arguments(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    functions = {var: structural_map(f, (tirx.AttrStmt, _align_to_elements)) for var, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


@tvm.instrument.pass_instrument
class WorkspaceMeter:
    """Adds up what a program allocates beyond the stack; a kernel holds all of it at the same time."""

    def __init__(self) -> None:
        self.bytes = 0

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM."""
        if info.name == _ALLOCATES:
            structural_walk(module, (tvm.ir.Call, self._add))

    def _add(self, call: tvm.ir.Call) -> None:
        if call.op.same_as(_ALLOCATE):
            self.bytes += int(call.args[2])


def _keep_on_stack(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
    element = DataType(str(statement.buffer.dtype))
    size = prod(int(extent) for extent in statement.buffer.shape) * element.lanes * element.bits // 8
    if size > LARGEST_TILE_BYTES:
        return statement
    return tirx.AllocBuffer(statement.buffer, {"disable_lower_builtin": tirx.IntImm("int32", 1)})


def _keep_tiles_on_stack(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    functions = {var: structural_map(f, (tirx.AllocBuffer, _keep_on_stack)) for var, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")
    align = tvm.transform.module_pass(_align_arguments, opt_level=0, name="AlignArgumentsToElements")
    stack = tvm.transform.module_pass(_keep_tiles_on_stack, opt_level=0, name="KeepTilesOnStack")
    return tvm.transform.Sequential([lower, align, stack]), finalize_host, finalize_device


tirx.register_tir_pipeline(NAME, _pipeline)
