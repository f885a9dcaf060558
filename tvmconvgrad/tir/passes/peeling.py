"""A pass that takes the first and the last iteration out of an annotated loop.

    [peel] for i in range(n): body(i)    ->    body(0); for i in range(1, n - 1): body(i); body(n - 1)

Conditions for padding at the ends of an axis are then constants in all three. A schedule annotates the loop by `PEEL`.
"""

from __future__ import annotations

from tvm import tirx

from tvmconvgrad.tir.annotations import PEEL
from tvmconvgrad.tir.passes.statements import index
from tvmconvgrad.tir.rewriting import replaced


def peeled(marked: tirx.AttrStmt) -> tirx.Stmt:
    """The iterations of an annotated loop."""
    if marked.attr_key != PEEL:
        return marked
    loop = marked.body
    count = int(loop.extent)
    parts = [replaced(loop.body, {loop.loop_var: index(each)}) for each in sorted({0, count - 1})]
    if count > 2:
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        body = replaced(loop.body, {loop.loop_var: var + 1})
        parts.insert(1, tirx.For(var, index(0), index(count - 2), loop.kind, body))
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]
