"""Conditions without quotients hold for the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.tir.passes.statements import is_linear, undivided
from tvmconvgrad.tir.rewriting import nodes, replaced

WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "3 <= e + v // 5": lambda e, v: tirx.LE(tirx.IntImm("int64", 3), e + v // 5),
    "3 < e + v // 5": lambda e, v: tirx.LT(tirx.IntImm("int64", 3), e + v // 5),
    "e + v // 5 < 4": lambda e, v: e + v // 5 < 4,
    "e + v // 5 <= 4": lambda e, v: e + v // 5 <= 4,
    "7 - v // 3 <= e": lambda e, v: 7 - v // 3 <= e,
    "e < 2 - v // 3": lambda e, v: e < 2 - v // 3,
}
KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "twice": lambda e, v: e + 2 * (v // 5) < 4,
    "two quotients": lambda e, v: v // 5 + v // 3 < e,
    "a rest": lambda e, v: v % 5 < e,
    "an equation": lambda e, v: tirx.EQ(e, v // 5),
}


def _holds(condition: Any, e: tirx.Var, v: tirx.Var, values: tuple[int, int]) -> bool:
    given = {e: tirx.IntImm("int64", values[0]), v: tirx.IntImm("int64", values[1])}
    return bool(Analyzer().simplify(replaced(condition, given)))


@pytest.mark.parametrize("name", [*WRITTEN, *KEPT])
def test_undivided(name: str) -> None:
    e, v = tirx.Var("e", "int64"), tirx.Var("v", "int64")
    condition = {**WRITTEN, **KEPT}[name](e, v)
    found = undivided(condition, v)
    for values in ((offset, at) for offset in range(-9, 10) for at in range(-16, 17)):
        assert _holds(found, e, v, values) == _holds(condition, e, v, values), values
    assert bool(nodes(found, tirx.FloorDiv)) == (name in KEPT and name != "a rest")
    assert is_linear(found, v) == (name in WRITTEN)
