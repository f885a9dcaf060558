"""A pass for bf16 dot-product pairs: each lane of a vector adds two products to its sum, by one instruction of
AVX512_BF16.

    sum[lane] += a[lane, 0] * b[lane, 0] + a[lane, 1] * b[lane, 1]

The two elements of a lane's pair are contiguous; one operand may be the same pair for all lanes. Both stay in 16 bits.

A schedule annotates the loop over the lanes by `PAIRS`; the only loop inside of it is the one over a pair. TVM's code
generator has no type for LLVM's bfloat, so the instruction is called through a function in LLVM IR.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad

from tvmconvgrad.tir.annotations import PAIRS
from tvmconvgrad.tir.passes.statements import index, step_of, with_functions, without_binds
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten

_FUNCTION = """
declare <{n} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(<{n} x float>, <{m} x bfloat>, <{m} x bfloat>)

define <{n} x float> @add_pairs_{n}(<{n} x float> %sums, <{n} x i32> %first, <{n} x i32> %second) {{
  %a = bitcast <{n} x i32> %first to <{m} x bfloat>
  %b = bitcast <{n} x i32> %second to <{m} x bfloat>
  %total = call <{n} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
      <{n} x float> %sums, <{m} x bfloat> %a, <{m} x bfloat> %b)
  ret <{n} x float> %total
}}
"""


def with_pairs(module: IRModule) -> IRModule:
    """`module` with each annotated loop replaced by one statement on vectors, and with the functions that these
    call."""
    widths: set[int] = set()

    def loop(marked: tirx.AttrStmt) -> tirx.Stmt:
        if marked.attr_key != PAIRS:
            return marked
        lanes = marked.body
        body = without_binds(lanes.body)
        if isinstance(body, tirx.BufferStore):  # it fills the sums with zeros
            return tirx.For(lanes.loop_var, lanes.min, lanes.extent, tirx.ForKind.VECTORIZED, lanes.body)
        widths.add(int(lanes.extent))
        return _add(lanes, body)

    module = rewritten(module, (tirx.AttrStmt, loop))
    functions = [_FUNCTION.format(n=lanes, m=2 * lanes, bits=32 * lanes) for lanes in sorted(widths)]
    return with_functions(module, functions) if functions else module


def _add(lanes: tirx.For, pair: tirx.For) -> tirx.Stmt:
    """What all lanes add, each in a loop over a pair."""
    store = without_binds(pair.body)
    count, (place,) = int(lanes.extent), store.indices
    loads = [load for load in nodes(store.value, TensorLoad) if not load.source.same_as(store.buffer)]
    begin = {lanes.loop_var: index(0), pair.loop_var: index(0)}

    def is_shared(load: TensorLoad) -> bool:
        # not "a step of 0": a shared pair's index may have the lane in a quotient that is the same for all of them
        return step_of(load.indices, lanes.loop_var) != 2

    def operand(load: TensorLoad) -> Expr:
        pairs = 1 if is_shared(load) else count
        bits = tirx.BufferLoad(load.source, [tirx.Ramp(replaced(load.indices[0], begin), index(1), 2 * pairs)])
        if is_shared(load):
            return tirx.Broadcast(tirx.reinterpret("uint32", bits), count)
        return tirx.reinterpret(f"uint32x{count}", bits)

    sums = tirx.Ramp(replaced(place, begin), index(1), count)
    total = tirx.call_extern(
        f"float32x{count}",
        f"add_pairs_{count}",
        tirx.BufferLoad(store.buffer, [sums]),
        *map(operand, sorted(loads, key=is_shared)),  # a shared pair comes last: LLVM reads it from memory there
    )
    return tirx.BufferStore(store.buffer, total, [sums])
