"""A pass that stages the results of a work item, and copies them by whole cache lines.

    parallel i: out[part i] = ..    ->    parallel i: staged = ..; out[part i] = staged

In NCX the results of a work item's groups are contiguous in memory, but rows seldom begin with a cache line, and output
phases interleave in them. Written in their order, each line would be read from memory before it is written. The staged
results stay in the core's caches, and the copy is by non-temporal stores (tir/passes/non_temporal.py).

A schedule annotates the loop over work items by `STAGED`. Each of them must write a part of the result of its own, all
of it, and these parts must follow each other in the order of the work items.
"""

from __future__ import annotations

from math import prod

from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.tir.annotations import NON_TEMPORAL, STAGED
from tvmconvgrad.tir.names import OUT
from tvmconvgrad.tir.rewriting import nodes, with_body


def staged(marked: tirx.AttrStmt) -> tirx.Stmt:
    """An annotated loop over work items whose results are staged; the annotation's value is the elements of a
    cache line. Buffers are flat."""
    if marked.attr_key != STAGED:
        return marked
    loop, line = marked.body, int(marked.value)
    out = next(store.buffer for store in nodes(loop, tirx.BufferStore) if store.buffer.name == OUT)
    part = prod(map(int, out.shape)) // int(loop.extent)
    stage = tirx.decl_buffer((part,), out.dtype, "staged")
    begin, simplify = loop.loop_var * part, Analyzer().simplify

    def store(statement: tirx.BufferStore) -> tirx.BufferStore:
        if not statement.buffer.same_as(out):
            return statement
        (place,) = statement.indices
        return tirx.BufferStore(stage, statement.value, [simplify(place - begin)])

    body = structural_map(loop.body, ((tirx.BufferStore, store),))
    number = tirx.Var("line", "int64")
    here, there = (tirx.Ramp(first + number * line, tirx.IntImm("int64", 1), line) for first in (0, begin))
    copy = tirx.BufferStore(out, tirx.BufferLoad(stage, [here]), [there])
    copies = tirx.For(number, 0, part // line, tirx.ForKind.SERIAL, copy)
    written = tirx.AttrStmt(number, NON_TEMPORAL, tirx.IntImm("int32", 1), copies)
    return with_body(loop, tirx.SeqStmt([tirx.AllocBuffer(stage), body, written]))
