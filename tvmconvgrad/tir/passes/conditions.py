"""A pass that turns annotated conditions into `if` statements, once memory is planned.

    [condition] body    ->    if condition: body

A schedule annotates the statement by `CONDITION`.
"""

from __future__ import annotations

from tvm import tirx

from tvmconvgrad.tir.annotations import CONDITION


def with_condition(marked: tirx.AttrStmt) -> tirx.Stmt:
    """An annotated statement, executed only under its condition."""
    return tirx.IfThenElse(marked.value, marked.body, None) if marked.attr_key == CONDITION else marked
