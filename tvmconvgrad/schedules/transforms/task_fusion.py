"""A rewrite of a scheduled program: task fusion (of work items, not tuning tasks). The parallel loops of several sums
become one.

    parallel i: sum_0(i)                   parallel i:
    parallel i: sum_1(i)          ->         sum_0(i)
                                             sum_1(i)

The output phases of a strided data gradient are sums of their own over the same partitions of positions, and their
results interleave in memory. A work item that computes all phases of its partition keeps their data, and the cache
lines of the result, in its cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body, with_parts


def fuse_tasks(module: IRModule, sums: Sequence[str]) -> IRModule:
    """`module` with the parallel loops of the blocks `sums` fused, behind all that they depend on; unchanged if they
    differ in the number of work items."""
    if len(sums) < 2:
        return module

    def root(block: SBlock) -> SBlock:
        if block.name_hint != "root" or not isinstance(block.body, tirx.SeqStmt):
            return block
        loops = [loop for loop in block.body.seq if _computes(loop, sums)]
        others = [statement for statement in block.body.seq if not _computes(statement, sums)]
        if len(loops) != len(sums) or len({int(loop.extent) for loop in loops}) > 1:
            return block
        body = tirx.SeqStmt([*others, _fused(loops)]) if others else _fused(loops)
        return with_parts(block, body=body)

    return rewritten(module, (SBlock, root))


def _computes(statement: tirx.Stmt, sums: Sequence[str]) -> bool:
    """Whether a statement is the parallel loop of one of the sums."""
    names = [block.name_hint for block in nodes(statement, SBlock)]
    parallel = isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL
    return parallel and any(name.startswith(f"{total}_") or name == total for name in names for total in sums)


def _fused(loops: Sequence[tirx.For]) -> tirx.For:
    first = loops[0]
    bodies = [replaced(loop.body, {loop.loop_var: first.loop_var}) for loop in loops]
    statements = [part for body in bodies for part in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]
    return with_body(first, tirx.SeqStmt(statements))
