"""Loops whose first and last iteration stand apart: as NumPy computes them, without conditions between the two."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import Call
from tvm.s_tir import Schedule

from tvmconvgrad.compiler import pipeline
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.tir.annotations import PEEL
from tvmconvgrad.tir.passes.peeling import peeled
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes

WIDTH = 4


def peeling(count: int, pad: int) -> Schedule:
    """`out`, of so many rows, is `a` with `pad` zeros before and behind it; the loop over rows is annotated."""
    a = te.placeholder((count * WIDTH,), "float32", "a")

    def element(i, j):  # type: ignore[no-untyped-def]
        place = i * WIDTH + j
        inside = tirx.all(place >= pad, place < count * WIDTH - pad)
        return tirx.if_then_else(inside, a(place), tirx.const(0.0, "float32"))

    out = te.compute((count, WIDTH), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[0], PEEL, 1)
    return sch


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("pad", [0, 3])
def test_all_iterations(count: int, pad: int) -> None:
    target = tvm.target.Target(parse_target(None).to_dict())
    module = tvm.compile(peeling(count, pad).mod, target=target, tir_pipeline=pipeline.NAME)
    source = np.arange(1, count * WIDTH + 1, dtype=np.float32)
    result = tvm.runtime.empty((count, WIDTH), "float32")
    module.jit()["main"](source, result)
    expected = np.where((np.arange(count * WIDTH) >= pad) & (np.arange(count * WIDTH) < count * WIDTH - pad), source, 0)
    assert np.array_equal(result.numpy().ravel(), expected)


def test_conditions_stay_at_the_ends_alone() -> None:
    module = tvm.transform.Sequential([*pipeline._plan_memory(), *pipeline._lower_loops()])(peeling(7, 3).mod)
    (sequence,) = nodes(module["main"].body, tirx.SeqStmt)
    parts = [part for part in sequence.seq if isinstance(part, tirx.For)]
    conditions = [any(call.op.same_as(IF_THEN_ELSE) for call in nodes(part, Call)) for part in parts]
    assert conditions == [True, False, True]
    assert tirx.analysis.verify_ssa(module["main"])


def test_other_annotations_are_left_alone() -> None:
    marked = tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_other", tirx.IntImm("int32", 1), tirx.Evaluate(0))
    assert peeled(marked).same_as(marked)
