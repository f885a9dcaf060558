"""Variables of a program's expressions and statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tvm import tirx
from tvm.ir import Expr
from tvm_ffi.structural import structural_map, structural_walk

Node = TypeVar("Node", Expr, tirx.Stmt)


def replaced(node: Node, values: Mapping[tirx.Var, Expr]) -> Node:
    """`node` with expressions in place of variables."""

    def value_of(var: tirx.Var) -> Expr:
        return next((value for known, value in values.items() if var.same_as(known)), var)

    changed: Node = structural_map(node, (tirx.Var, value_of))
    return changed


def uses(node: Expr, wanted: tirx.Var) -> bool:
    """Whether a variable occurs in an expression."""
    found: list[bool] = []
    structural_walk(node, (tirx.Var, lambda var: found.append(True) if var.same_as(wanted) else None))
    return bool(found)
