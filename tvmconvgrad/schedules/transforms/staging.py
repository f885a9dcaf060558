"""A rewrite of a scheduled program: work items stage their results (tir/passes/staging.py).

    parallel i: out[part i, ..] = ..    ->    parallel i, staged: out[part i, ..] = ..

It comes after the output maps: only then is it known what writes to the user's tensor.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import IRModule

from tvmconvgrad.tir.annotations import OUT, STAGED
from tvmconvgrad.tir.rewriting import nodes, rewritten, with_body


def stage_results(module: IRModule, line: int) -> IRModule:
    """`module` with the loop over work items annotated, if it is the only one that writes to the user's tensor. `line`
    are the elements of a cache line. Each work item must write a part of the tensor of its own; these follow each
    other, and are of whole lines."""
    loops = [loop for loop in nodes(module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL and _writes(loop)]
    if len(loops) != 1:
        return module

    def annotated(loop: tirx.For) -> tirx.For:
        here = loop.kind == tirx.ForKind.PARALLEL and _writes(loop)
        return with_body(loop, loop.body, {**loop.annotations, STAGED: line}) if here else loop

    return rewritten(module, (tirx.For, annotated))


def _writes(loop: tirx.For) -> bool:
    return any(store.buffer.name == OUT for store in nodes(loop, tirx.BufferStore))
