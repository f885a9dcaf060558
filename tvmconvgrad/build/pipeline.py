"""TVM's lowering, with two changes.

A kernel takes tensors at any address. TVM promises LLVM that a tensor's memory is aligned to 64 bytes, and nothing
checks it: vector moves then crash on a NumPy array, which is often aligned to 16. Only elements are aligned in the code
made here; on today's CPUs unaligned moves cost nothing where the address happens to be aligned.

Indices stay 64-bit. Narrowed to 32 bits, each address needs a sign extension, LLVM computes them in vectors, and the
register tile spills: half of the speed.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_map

NAME = "tvmconvgrad"
DISABLED = ("tirx.NarrowDataType",)


def _align_to_elements(statement: tirx.AttrStmt) -> tirx.AttrStmt:
    if statement.attr_key != "storage_alignment":
        return statement
    return tirx.AttrStmt(statement.node, statement.attr_key, tirx.IntImm("int32", 1), statement.body)


@tvm.transform.module_pass(opt_level=0, name="AlignArgumentsToElements")
def _align_arguments(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    functions = {var: structural_map(f, (tirx.AttrStmt, _align_to_elements)) for var, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")
    return tvm.transform.Sequential([lower, _align_arguments]), finalize_host, finalize_device


tirx.register_tir_pipeline(NAME, _pipeline)
