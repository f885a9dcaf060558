"""A pass that writes results by non-temporal stores.

A plain store first reads its cache line from memory, though all of it will be written, and a large result evicts from
the caches what the kernel reads. x86's non-temporal stores of whole lines do neither. They need addresses that are
multiples of the vector's bytes, and a result that begins with a cache line: vectors of half a line would otherwise
write each line at two times, and MobileNetV2's block5b_depthwise (data) took 4.3 times as long, but 1.3 times with
plain stores (an AMD EPYC with Zen 4, for x86-64-v3). Each store tests both, and is a plain store elsewhere. They are
not ordered with other stores, so a work item ends with a fence.

A schedule annotates a loop whose vectors are stored that way by `NON_TEMPORAL`. TVM's code generator has no such
stores, so they are functions in LLVM IR.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Call, IRModule
from tvm_ffi.structural import structural_map

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.tir.annotations import NON_TEMPORAL
from tvmconvgrad.tir.passes.statements import is_run, with_functions
from tvmconvgrad.tir.rewriting import EXTERN, nodes, rewritten, with_body

_TYPES = {"float32": ("float", 4), "float16": ("half", 2), "uint16": ("i16", 2)}
"""LLVM's name of an element's type, and its bytes."""

PREFIX = "non_temporal_"
"""How the names of the functions that store begin."""

_FENCE = "llvm.x86.sse.sfence"
_METADATA = "!0 = !{i32 1}\n"
_NON_TEMPORAL_STORE = "store <{n} x {type}> %vector, ptr %to, align {bytes}, !nontemporal !0"
# LLVM makes plain stores of halves where the CPU has no arithmetic for them, so they are stored as integers; and by a
# volatile store, since LLVM would remove the bitcast.
_NON_TEMPORAL_HALF_STORE = """%bits = bitcast <{n} x half> %vector to <{n} x i16>
  store volatile <{n} x i16> %bits, ptr %to, align {bytes}, !nontemporal !0"""
# The plain store is volatile, too: LLVM would make one store of both, a plain one.
_FUNCTION = """
define void @{name}(ptr %result, ptr %to, <{n} x {type}> %vector) {{
  %begin = ptrtoint ptr %result to i64
  %address = ptrtoint ptr %to to i64
  %within_line = and i64 %begin, {last_of_line}
  %within_vector = and i64 %address, {last}
  %rest = or i64 %within_line, %within_vector
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %past, label %plain
past:
  {non_temporal}
  ret void
plain:
  store volatile <{n} x {type}> %vector, ptr %to, align {element}
  ret void
}}
"""


def with_non_temporal_stores(module: IRModule) -> IRModule:
    """`module` with the vectors of annotated loops written by non-temporal stores, and a fence at the end of each work
    item."""
    functions: dict[str, str] = {}

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        place, dtype = statement.indices[-1], str(statement.buffer.dtype)
        if len(statement.indices) > 1 or dtype not in _TYPES or not is_run(place):
            return statement
        lanes, (name, element) = int(place.lanes), _TYPES[dtype]
        called, size = f"{PREFIX}{name}_{lanes}", lanes * element
        non_temporal = (_NON_TEMPORAL_HALF_STORE if name == "half" else _NON_TEMPORAL_STORE).format(
            n=lanes, type=name, bytes=size
        )
        functions[called] = _FUNCTION.format(
            name=called,
            n=lanes,
            type=name,
            last_of_line=CACHE_LINE - 1,
            last=size - 1,
            element=element,
            non_temporal=non_temporal,
        )
        begin, address = (tirx.address_of(tirx.BufferLoad(statement.buffer, [at])) for at in (0, place.base))
        return tirx.Evaluate(tirx.call_extern("void", called, begin, address, statement.value))

    def marked(statement: tirx.AttrStmt) -> tirx.Stmt:
        if statement.attr_key != NON_TEMPORAL:
            return statement
        return structural_map(statement.body, (tirx.BufferStore, store))

    module = rewritten(module, (tirx.AttrStmt, marked))
    if not functions:
        return module
    module = rewritten(module, (tirx.For, _fenced))
    fenced = {name: each.with_body(tirx.SeqStmt([each.body, _fence()])) for name, each in module.functions.items()}
    return with_functions(IRModule(fenced, attrs=module.attrs), [*functions.values(), _METADATA])


def _fenced(loop: tirx.For) -> tirx.For:
    """A loop over work items with a fence at the end of each: whoever learns that it is done then sees its stores."""
    if loop.kind != tirx.ForKind.PARALLEL or not any(map(_non_temporal, nodes(loop, Call))):
        return loop
    return with_body(loop, tirx.SeqStmt([loop.body, _fence()]))


def _non_temporal(call: Call) -> bool:
    return call.op.same_as(EXTERN) and str(call.args[0].value).startswith(PREFIX)


def _fence() -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_llvm_intrin("void", _FENCE))
