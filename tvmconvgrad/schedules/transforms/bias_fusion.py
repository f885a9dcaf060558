"""A rewrite of a scheduled program: the bias gradient is summed beside the products of the same positions.

    parallel i:                                        parallel i:
      for cache block: sum(i, cache block)               zero(i)
    parallel i:                                   ->     for cache block:
      zero(i)                                              bias(i, cache block)
      for cache block: bias(i, cache block)                sum(i, cache block)

Both read dy, a weights gradient by cache blocks of positions. If the bias has the same work items and cache blocks, dy
is read from memory once for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body, with_parts


def fuse_bias(module: IRModule, total: str, bias: str) -> IRModule:
    """`module` with the parallel loop of sums that begin with `bias` fused with that of those that begin with `total`.

    Raises RuntimeError if the two differ in the number of work items or of cache blocks.
    """

    def root(block: SBlock) -> SBlock:
        if block.name_hint != "root":
            return block
        of_total, of_bias = (_adding(block.body.seq, name) for name in (total, bias))
        *zero, of_blocks = _statements(replaced(of_bias.body, {of_bias.loop_var: of_total.loop_var}))
        parts = _statements(of_total.body)
        blocks = _adding(parts, total)
        if [int(of_total.extent), int(blocks.extent)] != [int(of_bias.extent), int(of_blocks.extent)]:
            raise RuntimeError(f"{total} and {bias} differ in their work items or cache blocks")
        sums = replaced(of_blocks.body, {of_blocks.loop_var: blocks.loop_var})
        fused = with_body(blocks, tirx.SeqStmt([*_statements(sums), *_statements(blocks.body)]))
        item = with_body(of_total, tirx.SeqStmt([*zero, *(fused if each.same_as(blocks) else each for each in parts)]))
        others = [item if each.same_as(of_total) else each for each in block.body.seq if not each.same_as(of_bias)]
        return with_parts(block, body=tirx.SeqStmt(others))

    return rewritten(module, (SBlock, root))


def _adding(statements: Sequence[tirx.Stmt], name: str) -> tirx.For:
    """The loop among some statements with the products of a sum whose name begins with `name`."""
    return next(
        each
        for each in statements
        if isinstance(each, tirx.For)
        and any(
            block.name_hint.startswith(name) and block.name_hint.endswith("_update") for block in nodes(each, SBlock)
        )
    )


def _statements(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
