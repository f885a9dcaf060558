"""A pass for CPUs with AVX512_BF16: one instruction rounds a vector of f32 to bf16.

    (bits + (bits >> 16 & 1) + 0x7FFF) >> 16    ->    VCVTNEPS2BF16

Both round to the nearest, ties to even. The instruction takes numbers below the least normal one as zeros, as AMX does.
So it rounds only what tile registers have stored, none of which is such a number: not a sum to which a bias or an older
result was added, nor a bias gradient. Programs that add pairs by vectors took as long with it (14 forwards, an Intel
Xeon with AMX). It rounds only vectors that are stored contiguously as they are: where strided ones are stored by masks,
ResNet-50's res4a_branch2a (data, NCX) took 1.6 times as long.

Programs with non-temporal stores keep the other form: of vectors that the instruction has rounded, LLVM 22 makes plain
stores of all but the first, and MobileNetV2's block2_expand (forward) took 4 times as long (an Intel Xeon with AMX).
"""

from __future__ import annotations

from tvm import DataType, tirx
from tvm.ir import Call, Expr, IRModule, StringImm, TensorLoad
from tvm.target import codegen
from tvm_ffi.structural import structural_equal

from tvmconvgrad.tir.passes.non_temporal import PREFIX as NON_TEMPORAL
from tvmconvgrad.tir.passes.statements import is_run, with_functions
from tvmconvgrad.tir.passes.tiles import STORE_TILES
from tvmconvgrad.tir.rewriting import EXTERN, nodes, rewritten

_FUNCTION = """
define <{n} x i16> @round_to_bf16_{n}(<{n} x float> %values) {{
  %rounded = fptrunc <{n} x float> %values to <{n} x bfloat>
  %bits = bitcast <{n} x bfloat> %rounded to <{n} x i16>
  ret <{n} x i16> %bits
}}
"""


def with_roundings(module: IRModule) -> IRModule:
    """`module` with sums from tile registers rounded by the instruction, if the CPU has it and the program has no
    non-temporal stores."""
    called = [name.value for name in nodes(module, StringImm)]
    stores_past_caches = any(name.startswith(NON_TEMPORAL) for name in called)
    sums = [load.source for call in nodes(module, Call) if _stores_tiles(call) for load in nodes(call, TensorLoad)]
    if not sums or stores_past_caches or not _has_instruction(module):
        return module
    widths: set[int] = set()

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        if str(found.buffer.scope()) == "local" or not is_run(found.indices[0]):
            return found
        loads = [load for load in nodes(found.value, TensorLoad) if any(load.source.same_as(each) for each in sums)]
        lanes = DataType(str(found.value.ty)).lanes
        if not loads or not structural_equal(found.value, _rounded(loads[0], lanes)):
            return found
        widths.add(lanes)
        rounded = tirx.call_extern(f"uint16x{lanes}", f"round_to_bf16_{lanes}", loads[0])
        return tirx.BufferStore(found.buffer, rounded, found.indices)

    module = rewritten(module, (tirx.BufferStore, store))
    return with_functions(module, (_FUNCTION.format(n=lanes) for lanes in sorted(widths))) if widths else module


def _rounded(value: Expr, lanes: int) -> Expr:
    """The expression by which TVM rounds a vector of f32."""

    def constant(number: int) -> Expr:
        return tirx.Broadcast(tirx.const(number, "uint32"), lanes)

    bits = tirx.reinterpret(f"uint32x{lanes}", value)
    rounded = (bits + ((bits >> constant(16) & constant(1)) + constant(0x7FFF))) >> constant(16)
    return tirx.Cast(f"uint16x{lanes}", rounded)


def _stores_tiles(call: Call) -> bool:
    """Whether a call stores tile registers."""
    return bool(call.op.same_as(EXTERN)) and str(call.args[0].value) == STORE_TILES


def _has_instruction(module: IRModule) -> bool:
    """Whether the target's CPU has VCVTNEPS2BF16."""
    targets = [function.attrs["target"] for function in module.functions.values()]
    return bool(codegen.llvm_cpu_has_features("avx512bf16", targets[0]))
