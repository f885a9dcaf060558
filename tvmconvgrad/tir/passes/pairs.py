"""A pass for bf16 dot-product pairs: each lane of a vector adds two products to its sum, by one instruction: VDPBF16PS
of AVX512_BF16, or BFDOT of AArch64.

    sum[lane] += a[lane, 0] * b[lane, 0] + a[lane, 1] * b[lane, 1]

The two elements of a lane's pair are contiguous, or neighbours in a strided row; one operand may be the same pair for
all lanes. Both stay in 16 bits. What lies outside of the user's tensor is padding, which a mask leaves out
(masking.py).

A schedule annotates the loop over the lanes by `PAIRS`; the only loop inside of it is the one over a pair. TVM's code
generator has no type for LLVM's bfloat, so the instruction is called through functions in LLVM IR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.target import codegen

from tvmconvgrad.tir.annotations import PAIRS
from tvmconvgrad.tir.passes.masking import Lanes, guards_of
from tvmconvgrad.tir.passes.statements import index, step_of, with_functions, without_binds
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten

_FUNCTION = """
declare <{n} x float> @{intrinsic}(<{n} x float>, <{m} x bfloat>, <{m} x bfloat>)

define <{n} x float> @add_pairs_{n}(<{n} x float> %sums, <{n} x i32> %first, <{n} x i32> %second) {{
  %a = bitcast <{n} x i32> %first to <{m} x bfloat>
  %b = bitcast <{n} x i32> %second to <{m} x bfloat>
  %total = call <{n} x float> @{intrinsic}(<{n} x float> %sums, <{m} x bfloat> %a, <{m} x bfloat> %b)
  ret <{n} x float> %total
}}
"""
_SHARED = """
declare <{m} x bfloat> @llvm.arithmetic.fence.v{m}bf16(<{m} x bfloat>)

define <{n} x float> @add_shared_pair_{n}(<{n} x float> %sums, <{n} x i32> %first, i32 %pair) {{
  %alone = insertelement <{n} x i32> poison, i32 %pair, i32 0
  %loaded = bitcast <{n} x i32> %alone to <{m} x bfloat>
  %kept = call <{m} x bfloat> @llvm.arithmetic.fence.v{m}bf16(<{m} x bfloat> %loaded)
  %element = bitcast <{m} x bfloat> %kept to <{n} x i32>
  %second = shufflevector <{n} x i32> %element, <{n} x i32> poison, <{n} x i32> zeroinitializer
  %total = call <{n} x float> @add_pairs_{n}(<{n} x float> %sums, <{n} x i32> %first, <{n} x i32> %second)
  ret <{n} x float> %total
}}
"""
"""Each lane adds the products with the same pair, an element of a vector register. LLVM 22 takes an element only from a
value of type bfloat, and gives a loaded one another type (llvm-project's pull request 221745): the fence, for which
there is no code, keeps its type."""


@dataclass(frozen=True)
class _Instruction:
    """The instruction of CPUs with a `feature`, by LLVM's name of it, for n lanes and m = 2 * n products."""

    feature: str
    intrinsic: str
    by_element: bool
    """Whether it takes a shared pair from an element of a vector register, otherwise from memory."""

    def functions(self, lanes: int) -> str:
        """The functions that add to so many lanes."""
        sizes = {"n": lanes, "m": 2 * lanes}
        text = _FUNCTION + _SHARED if self.by_element else _FUNCTION
        return text.format(intrinsic=self.intrinsic.format(bits=32 * lanes, **sizes), **sizes)


_INSTRUCTIONS = (
    _Instruction("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.{bits}", by_element=False),
    _Instruction("bf16", "llvm.aarch64.neon.bfdot.v{n}f32.v{m}bf16", by_element=True),
)


def with_pairs(module: IRModule) -> IRModule:
    """`module` with each annotated loop replaced by one statement on vectors, and with the functions that these
    call."""
    instruction = _instruction(module)
    known = {bind.var: bind.value for bind in nodes(module, tirx.Bind)}
    widths: set[int] = set()

    def loop(marked: tirx.AttrStmt) -> tirx.Stmt:
        if marked.attr_key != PAIRS:
            return marked
        lanes = marked.body
        body = without_binds(lanes.body)
        if isinstance(body, tirx.BufferStore):  # it fills the sums with zeros
            return tirx.For(lanes.loop_var, lanes.min, lanes.extent, tirx.ForKind.VECTORIZED, lanes.body)
        assert instruction is not None
        widths.add(int(lanes.extent))
        return _add(lanes, body, instruction.by_element, known)

    module = rewritten(module, (tirx.AttrStmt, loop))
    return with_functions(module, map(instruction.functions, sorted(widths))) if instruction and widths else module


def _instruction(module: IRModule) -> _Instruction | None:
    """The instruction that the target's CPU has; None if it has none."""
    targets = [function.attrs["target"] for function in module.functions.values()]
    return next((each for each in _INSTRUCTIONS if codegen.llvm_cpu_has_features(each.feature, targets[0])), None)


def _add(lanes: tirx.For, pair: tirx.For, by_element: bool, known: Mapping[tirx.Var, Expr]) -> tirx.Stmt:
    """What all lanes add, each in a loop over a pair."""
    store = without_binds(pair.body)
    count, (place,) = int(lanes.extent), store.indices
    operands = _operands(store)
    element = tirx.Var("element", "int64")
    elements = Lanes(element, 2 * count, known)
    in_elements = {lanes.loop_var: element // 2, pair.loop_var: element % 2}
    begin = {lanes.loop_var: index(0), pair.loop_var: index(0)}

    def is_shared(value: Expr) -> bool:
        # None, too: a shared pair's index may have the lane in a quotient that is the same for all of them
        return not guards_of(value) and not step_of(value.indices, lanes.loop_var)

    def contiguous(load: TensorLoad, size: int) -> Expr:
        return tirx.BufferLoad(load.source, [tirx.Ramp(replaced(load.indices[0], begin), index(1), size)])

    def whole(value: Expr) -> Expr:
        return elements.analyzer.simplify(replaced(value, in_elements))

    def operand(value: Expr) -> Expr:
        if is_shared(value):
            both = tirx.reinterpret("uint32", contiguous(value, 2))
            return both if by_element else tirx.Broadcast(both, count)
        if not guards_of(value) and step_of(value.indices, lanes.loop_var) == 2:
            return tirx.reinterpret(f"uint32x{count}", contiguous(value, 2 * count))
        return tirx.reinterpret(f"uint32x{count}", elements.vector(whole(value)))

    # what is under a condition that never holds may be a constant by now
    is_zero = len(operands) < 2 or any(isinstance(whole(each), tirx.IntImm) for each in operands)
    if is_zero or elements.adds_zeros(store.value):
        return tirx.Evaluate(0)
    assert len(operands) == 2 and not all(map(is_shared, operands))
    sums = tirx.Ramp(replaced(place, begin), index(1), count)
    total = tirx.call_extern(
        f"float32x{count}",
        f"add_shared_pair_{count}" if by_element and any(map(is_shared, operands)) else f"add_pairs_{count}",
        tirx.BufferLoad(store.buffer, [sums]),
        *map(operand, sorted(operands, key=is_shared)),  # a shared pair comes last: LLVM reads it from memory there
    )
    return tirx.BufferStore(store.buffer, total, [sums])


def _operands(store: tirx.BufferStore) -> list[Expr]:
    """Both factors that a store multiplies: loads, some of which are zero under a condition."""
    guards = guards_of(store.value)
    guarded = [load for guard in guards for load in nodes(guard, TensorLoad)]
    loads = [load for load in nodes(store.value, TensorLoad) if not load.source.same_as(store.buffer)]
    return [*guards, *(load for load in loads if not any(load.same_as(each) for each in guarded))]
