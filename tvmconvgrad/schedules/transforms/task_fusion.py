"""A rewrite of a scheduled program: sums whose work items correspond become one parallel loop.

The phases of a strided data gradient are sums of their own, each over the same partitions of positions, and their
results interleave. Task by work item, instead of sum by sum, the data of a range and the lines of its result stay in
the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body, with_parts


def join(module: IRModule, sums: Sequence[str]) -> IRModule:
    """`module` with the parallel loops of the blocks `sums` joined, behind all that they depend on."""
    if len(sums) < 2:
        return module

    def root(block: SBlock) -> SBlock:
        if block.name_hint != "root" or not isinstance(block.body, tirx.SeqStmt):
            return block
        loops = [loop for loop in block.body.seq if _computes(loop, sums)]
        others = [statement for statement in block.body.seq if not _computes(statement, sums)]
        if len(loops) != len(sums) or len({int(loop.extent) for loop in loops}) > 1:
            return block
        body = tirx.SeqStmt([*others, _joined(loops)]) if others else _joined(loops)
        return with_parts(block, body=body)

    return rewritten(module, (SBlock, root))


def _computes(statement: tirx.Stmt, sums: Sequence[str]) -> bool:
    """Whether a statement is the parallel loop of one of the sums."""
    names = [block.name_hint for block in nodes(statement, SBlock)]
    parallel = isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL
    return parallel and any(name.startswith(f"{total}_") or name == total for name in names for total in sums)


def _joined(loops: Sequence[tirx.For]) -> tirx.For:
    first = loops[0]
    bodies = [replaced(loop.body, {loop.loop_var: first.loop_var}) for loop in loops]
    statements = [part for body in bodies for part in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]
    return with_body(first, tirx.SeqStmt(statements))
