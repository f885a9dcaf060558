"""Vectors of which some lanes are padding, under conditions drawn at random: as NumPy computes them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tests.support.cases.case import DTYPES
from tvmconvgrad.compiler import pipeline
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.te.tensors import as_f32
from tvmconvgrad.tir.annotations import MASK

ROWS, LANES = 6, 8
TERMS = ["i // {q}", "(j * {p} + i // {q}) // {r}", "(j * {p} + i) // {r} - i // {q}", "({p} - i) // {r}", "i % {r}"]
"""How a term of a condition has the lane: in a quotient, in one within another, in two that differ, negated, modulo."""


def masked(condition: str, source: Any) -> tuple[Any, str]:
    """The elements of `source` in rows of vectors, in f32, zero where a condition on row `j` and lane `i` fails; LLVM's
    program."""
    is_bf16 = source.dtype == DTYPES["bf16"]
    source = source.view(np.uint16) if is_bf16 else source
    a = te.placeholder(source.shape, str(source.dtype), "a")

    def element(j: Any, i: Any) -> Any:
        taken = a(j * LANES + i)
        taken = as_f32(taken) if is_bf16 else taken.astype("float32")
        return tirx.if_then_else(eval(condition, {"i": i, "j": j}), taken, tirx.const(0.0, "float32"))

    out = te.compute((ROWS, LANES), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[1], MASK, 1)
    target = tvm.target.Target(parse_target(None).to_dict())
    module = tvm.compile(sch.mod, target=target, tir_pipeline=pipeline.NAME)
    result = tvm.runtime.empty((ROWS, LANES), "float32")
    module.jit()["main"](source, result)
    return result.numpy(), module.mod.inspect_source("ll")


@pytest.mark.parametrize(("seed", "dtype"), [*zip(range(6), 2 * ("f32", "f16", "bf16"))])
@pytest.mark.parametrize("term", TERMS)
def test_a_condition_on_lanes(term: str, seed: int, dtype: str) -> None:
    draw = random.Random(seed)
    term = term.format(p=draw.randint(1, 9), q=draw.choice([2, 4]), r=draw.choice([3, 5, 6, 10]))
    row, lane = np.arange(ROWS)[:, None], np.arange(LANES)[None]
    values = eval(term, {"i": lane, "j": row}) + 0 * row
    condition = f"{term} {draw.choice(['<', '<=', '>', '>='])} {draw.choice(sorted(set(values.flat)))}"
    source = np.arange(1, ROWS * LANES + 1, dtype=np.float32)
    got, _ = masked(condition, source.astype(DTYPES[dtype]))
    expected = np.where(eval(condition, {"i": lane, "j": row}), source.reshape(ROWS, LANES), 0)
    assert np.array_equal(got, expected), condition


@pytest.mark.parametrize("far", [1 << 31, 1 << 32, -(1 << 32), (1 << 33) + 5])
@pytest.mark.parametrize("term", ["j * ({far}) + i", "j + i * ({far})"])
def test_numbers_that_32_bits_do_not_hold(term: str, far: int) -> None:
    source = np.arange(1, ROWS * LANES + 1, dtype=np.float32)
    condition = f"{term.format(far=far)} < 3"
    got, _ = masked(condition, source)
    row, lane = np.arange(ROWS, dtype=np.int64)[:, None], np.arange(LANES, dtype=np.int64)[None]
    assert np.array_equal(got, np.where(eval(condition, {"i": lane, "j": row}), source.reshape(ROWS, LANES), 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_quotient_within_a_quotient_is_one_comparison_of_vectors(dtype: str) -> None:
    _, program = masked("(j * 4 + i // 2) // 5 < 2", np.ones(ROWS * LANES, DTYPES[dtype]))
    assert "@llvm.masked.load" in program
