"""Rewrites of a scheduled program: software prefetch of what a tile will read, or write.

    for p: tile += data[p, k] * ..      ->    for p: prefetch(data[p + ahead, k]); tile += data[p, k] * ..

A tile reads a short run of channels at a position, and the run at the next position lies a whole row of channels away.
A core's own prefetcher does not follow such runs, so each would wait for memory. With this rewrite a step prefetches
all cache lines of the same channels some positions later. They go to L2, since a core can have more misses in flight
there than in L1. In data that was packed to memory, a step prefetches the same position of the next block.

`prefetch_results` lets a tile prefetch the lines that it will write, or that later ones will, before it begins. This
pays where a tile has few products, or adds to results that are not in L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize

from tvmconvgrad.tir.annotations import PREFETCH_EACH, PREFETCH_LINE, PREFETCH_READS
from tvmconvgrad.tir.passes.prefetch import prefetch
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body


def prefetch_reads(module: IRModule, ahead: Mapping[str, Sequence[int]]) -> IRModule:
    """`module` with prefetches in the loops annotated by `PREFETCH_READS`. `ahead` has, by the name of a parameter or
    of a packed operand, the distances in elements along its last axes."""

    def loop(statement: tirx.For) -> tirx.For:
        if PREFETCH_READS not in statement.annotations:
            return statement
        others = {key: value for key, value in statement.annotations.items() if key != PREFETCH_READS}
        prefetches: dict[str, tirx.Stmt] = {}
        for load, place in _accesses(statement.body, TensorLoad, _reading):
            if load.source.name in ahead:
                fetched = _ahead(place, ahead[load.source.name])
                prefetches[f"{load.source.name}{fetched}"] = prefetch(load.source, fetched, cache=2)
        body = tirx.SeqStmt([*prefetches.values(), statement.body]) if prefetches else statement.body
        return with_body(statement, body, others)

    return rewritten(module, (tirx.For, loop))


def prefetch_results(module: IRModule, name: str = "result", ahead: Sequence[int] = ()) -> IRModule:
    """`module`, in which each tile prefetches what it will write, or what lies `ahead` of that (distances in elements
    along the last axes): tiles whose last statement is a block with a name that begins with `name`."""

    def tile(statement: tirx.SeqStmt) -> tirx.SeqStmt:
        last = statement.seq[-1]
        blocks = nodes(last, SBlockRealize)
        if len(blocks) != 1 or not blocks[0].block.name_hint.startswith(name):
            return statement
        stores = _accesses(last, tirx.BufferStore, _writing)
        prefetches = [
            prefetch(store.buffer, _ahead(index, ahead), write=True)
            for store, index in stores
            if _is_memory(store.buffer)
        ]
        return tirx.SeqStmt([*prefetches, *statement.seq]) if prefetches else statement

    return rewritten(module, (tirx.SeqStmt, tile))


def _ahead(place: Sequence[Expr], distances: Sequence[int]) -> list[Expr]:
    """An index moved by these distances along the last axes."""
    first = len(place) - len(distances)
    return [*place[:first], *(at + distance for at, distance in zip(place[first:], distances))]


def _is_memory(buffer: tirx.Buffer) -> bool:
    """Whether a buffer lies in memory, not in the registers of a tile."""
    return str(buffer.scope()) != "local"


def _reading(loop: tirx.For) -> Sequence[int]:
    """The steps of a loop for which reads are prefetched."""
    extent = int(loop.extent)
    if PREFETCH_LINE in loop.annotations:
        return _each_line(loop)
    return (
        range(extent - int(loop.annotations[PREFETCH_EACH]), extent)
        if PREFETCH_EACH in loop.annotations
        else _one(loop)
    )


def _each_line(loop: tirx.For) -> Sequence[int]:
    """A step for each cache line of a loop that is annotated by `PREFETCH_LINE`."""
    extent, step = int(loop.extent), int(loop.annotations[PREFETCH_LINE])
    return sorted({*range(step - 1, extent, step), extent - 1})


def _writing(loop: tirx.For) -> Sequence[int]:
    """The steps of a loop for which writes are prefetched."""
    if PREFETCH_LINE in loop.annotations:
        return _each_line(loop)
    return range(int(loop.extent)) if loop.kind == tirx.ForKind.UNROLLED else _one(loop)


def _one(loop: tirx.For) -> range:
    """A loop's first step, or, where it is unrolled, its last."""
    last = int(loop.extent) - 1 if loop.kind == tirx.ForKind.UNROLLED else 0
    return range(last, last + 1)


def _accesses(
    body: tirx.Stmt, kind: type[Any], taken: Callable[[tirx.For], Sequence[int]]
) -> Iterator[tuple[Any, list[Expr]]]:
    """The loads, or stores, of the first block in `body`, with their indices, at the steps that `taken` gives for each
    loop."""
    realize = nodes(body, SBlockRealize)[0]
    bound = dict(zip((iter_var.var for iter_var in realize.block.iter_vars), realize.iter_values))
    for values in _steps(body, taken):
        for access in nodes(realize.block, kind):
            yield access, [replaced(replaced(index, bound), values) for index in access.indices]


def _steps(body: tirx.Stmt, taken: Callable[[tirx.For], Sequence[int]]) -> list[dict[tirx.Var, Expr]]:
    """Values of the variables of all loops in `body`, one dictionary for each combination of steps."""
    steps: list[dict[tirx.Var, Expr]] = [{}]
    for loop in nodes(body, tirx.For):
        steps = [{**step, loop.loop_var: tirx.const(value, "int64")} for step in steps for value in taken(loop)]
    return steps
