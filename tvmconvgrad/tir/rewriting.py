"""Helpers of all rewrites: find nodes, replace variables, rebuild loops and blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tvm import tirx
from tvm.ir import Expr, IRModule, Op
from tvm.s_tir.stmt import SBlock
from tvm_ffi.structural import structural_map, structural_walk

_PARTS = ["iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers", "annotations"]

IF_THEN_ELSE = Op.get("prim.if_then_else")
REINTERPRET = Op.get("tirx.reinterpret")
EXTERN = Op.get("tirx.call_extern")

Node = TypeVar("Node", Expr, tirx.Stmt)
Found = TypeVar("Found")


def rewritten(module: IRModule, *callbacks: tuple[type, Callable[[Any], Any]]) -> IRModule:
    """`module` with every node of a callback's type replaced by the callback's result, from the inside to the
    outside."""
    functions = {name: structural_map(function, callbacks) for name, function in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def with_parts(block: SBlock, **parts: Any) -> SBlock:
    """A copy of a block in which the named parts are replaced."""
    return SBlock(*(parts.get(name, getattr(block, name)) for name in _PARTS))


def with_body(loop: tirx.For, body: tirx.Stmt, annotations: Mapping[str, Any] | None = None) -> tirx.For:
    """A copy of a loop with another body, and with other annotations if they are given."""
    kept = loop.annotations if annotations is None else annotations
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=kept)


def nodes(root: Any, kind: type[Found]) -> list[Found]:
    """All nodes of a type inside of `root`, inner ones first."""
    found: list[Found] = []
    structural_walk(root, (kind, found.append))
    return found


def replaced(node: Node, values: Mapping[tirx.Var, Expr]) -> Node:
    """`node` with expressions in place of variables."""

    def value_of(var: tirx.Var) -> Expr:
        return next((value for known, value in values.items() if var.same_as(known)), var)

    changed: Node = structural_map(node, (tirx.Var, value_of))
    return changed


def uses(node: Expr, wanted: tirx.Var) -> bool:
    """Whether a variable occurs in an expression."""
    return any(var.same_as(wanted) for var in tirx.analysis.undefined_vars(node))
