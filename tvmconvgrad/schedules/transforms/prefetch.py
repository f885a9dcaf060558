"""Rewrites of a scheduled program: memory is fetched before it is read or written.

A tile reads a short run of channels at a position, and the run of the next position lies a row of channels away. A
core's own prefetcher loses such runs, and each would wait for memory. So each fetches the one of the same channels some
positions later, all of its lines, into the L2 cache: a core can await more lines there than in its L1 cache. Of data
that was packed to memory, each fetches the same position of the next block. Where there is little to sum, or where what
is added to lies far, a tile also fetches the lines that it will write, before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize

from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body

FETCH = "fetch_ahead"
"""Marks a loop: each step fetches what lies ahead of that which the first tile in it reads."""

EACH = "fetch_each"
"""Marks a loop of that tile: its last so many steps each read what is their own. Of other loops one step counts."""

LINE = "fetch_line"
"""Marks a loop of that tile whose steps are neighbours in memory: so many of them read one cache line."""


def fetch(module: IRModule, ahead: Mapping[str, Sequence[int]]) -> IRModule:
    """`module`, in which marked loops fetch data, by the name of a parameter or of what is packed: how far ahead along
    each of the last axes."""

    def loop(statement: tirx.For) -> tirx.For:
        if FETCH not in statement.annotations:
            return statement
        others = {key: value for key, value in statement.annotations.items() if key != FETCH}
        fetches: dict[str, tirx.Stmt] = {}
        for load, place in _accesses(statement.body, TensorLoad, _reading):
            if load.source.name in ahead:
                for axis, distance in enumerate(reversed(ahead[load.source.name]), start=1):
                    place[-axis] += distance
                fetches[f"{load.source.name}{place}"] = prefetch(load.source, place, cache=2)
        body = tirx.SeqStmt([*fetches.values(), statement.body]) if fetches else statement.body
        return with_body(statement, body, others)

    return rewritten(module, (tirx.For, loop))


def fetch_results(module: IRModule, name: str = "result") -> IRModule:
    """`module`, in which each tile fetches what it will write: its last statement stores a block of this name, or of
    one that begins with it."""

    def tile(statement: tirx.SeqStmt) -> tirx.SeqStmt:
        last = statement.seq[-1]
        blocks = nodes(last, SBlockRealize)
        if len(blocks) != 1 or not blocks[0].block.name_hint.startswith(name):
            return statement
        stores = _accesses(last, tirx.BufferStore, _writing)
        fetches = [prefetch(store.buffer, index, write=True) for store, index in stores if _is_memory(store.buffer)]
        return tirx.SeqStmt([*fetches, *statement.seq]) if fetches else statement

    return rewritten(module, (tirx.SeqStmt, tile))


def prefetch(buffer: tirx.Buffer, index: Sequence[Expr], write: bool = False, cache: int = 1) -> tirx.Stmt:
    """Bring a line into the L1 or the L2 cache, to be read or written. The index may lie outside of the buffer."""
    address = tirx.address_of(tirx.BufferLoad(buffer, list(index)))
    arguments = (tirx.IntImm("int32", value) for value in (int(write), 4 - cache, 1))  # 3: the L1 cache; 1: it is data
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *arguments))


def _is_memory(buffer: tirx.Buffer) -> bool:
    """Not registers, in which a tile is summed."""
    return str(buffer.scope()) != "local"


def _reading(loop: tirx.For) -> Sequence[int]:
    """The steps of a loop that count for what is read."""
    extent = int(loop.extent)
    if LINE in loop.annotations:
        step = int(loop.annotations[LINE])
        return sorted({*range(step - 1, extent, step), extent - 1})
    return range(extent - int(loop.annotations[EACH]), extent) if EACH in loop.annotations else _one(loop)


def _writing(loop: tirx.For) -> range:
    """The steps of a loop that count for what is written."""
    return range(int(loop.extent)) if loop.kind == tirx.ForKind.UNROLLED else _one(loop)


def _one(loop: tirx.For) -> range:
    """A loop's first step, or, where it is unrolled, its last."""
    last = int(loop.extent) - 1 if loop.kind == tirx.ForKind.UNROLLED else 0
    return range(last, last + 1)


def _accesses(
    body: tirx.Stmt, kind: type[Any], taken: Callable[[tirx.For], Sequence[int]]
) -> Iterator[tuple[Any, list[Expr]]]:
    """What the first block in `body` loads, or stores, and at which indices, at those steps of the loops."""
    realize = nodes(body, SBlockRealize)[0]
    bound = dict(zip((iter_var.var for iter_var in realize.block.iter_vars), realize.iter_values))
    for values in _steps(body, taken):
        for access in nodes(realize.block, kind):
            yield access, [replaced(replaced(index, bound), values) for index in access.indices]


def _steps(body: tirx.Stmt, taken: Callable[[tirx.For], Sequence[int]]) -> list[dict[tirx.Var, Expr]]:
    """Values for the variables of all loops in `body`."""
    steps: list[dict[tirx.Var, Expr]] = [{}]
    for loop in nodes(body, tirx.For):
        steps = [{**step, loop.loop_var: tirx.const(value, "int64")} for step in steps for value in taken(loop)]
    return steps
