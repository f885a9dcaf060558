"""No kernel touches a byte outside of its tensors: they lie between forbidden pages, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.random_cases import random_cases
from tests.support.memory.guarded import guarded, guarded_copy

ROOT = Path(__file__).resolve().parents[3]
WINOGRAD = {
    "ConvolutionBackpropFilters": "winograd-weights",
    "ConvolutionBackpropData": "winograd-data",
    "ConvTransposeBackpropData": "winograd-data",
}
FILTERS_BY_CHANNELS = {name: "IOX" if name.startswith("ConvTranspose") else "OIX" for name in WINOGRAD}
CASES = [
    Case(operator, Convolution(2, groups, c, o, (6, 5), (5, 3), (2, 2), (1, 2), (1, 1), (0, 0), (0, 1)), dtype=dtype)
    for operator in ("ConvolutionBackpropFilters", "ConvolutionBackpropData", "ConvTransposeBackpropData")
    for groups, c, o in ((1, 7, 3), (1, 17, 33), (3, 15, 21), (5, 5, 5))
    for dtype in ("f32", "bf16")
]
# by channels: results a stride apart, of which the last ends a row or does not; and operands read where they lie
CASES += [
    Case("ConvolutionBackpropData", conv, "NCX", "OIX")
    for conv in (
        Convolution(1, 1, 32, 16, (8, 16), (4, 8), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
        Convolution(1, 1, 32, 16, (7, 22), (7, 8), (1, 1), (1, 3), (1, 1), (0, 0), (0, 0)),
        Convolution(2, 3, 3, 3, (9, 37), (5, 19), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
        Convolution(2, 1, 8, 4, (8, 32), (8, 32), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
        Convolution(1, 1, 64, 512, (3, 11), (3, 11), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),  # added up in parts
    )
]
# by channels: results of 16 bits of which a vector has some; LLVM's own conditional store wrote one element more
CASES += [
    Case(operator, Convolution(1, 1, c, o, (size,), (size,), (1,), (1,), (1,), (0,), (0,)), "NCX", "IOX", dtype)
    for operator, c, o in (("ConvolutionBackpropData", 9, 10), ("ConvTransposeBackpropData", 10, 9))
    for size in (1, 2, 3)
    for dtype in ("bf16", "f16")
]
# rows that are read and stored by masks: of one vector, of several, a stride apart
CASES += [
    Case(operator, Convolution(2, 3, 3, 3, x, y, (3, 3), strides, (1, 1), (1, 1), (1, 1)), "NCX", "OIX", dtype)
    for operator in ("ConvolutionBackpropData", "ConvolutionBackpropFilters")
    for x, y, strides in (((9, 14), (9, 14), (1, 1)), ((9, 41), (9, 41), (1, 1)), ((9, 37), (5, 19), (2, 2)))
    for dtype in ("f32", "bf16", "f16")
]
# rows of which the last vector, or half of it, has one element, or others
CASES += [
    Case(
        "ConvolutionBackpropData",
        Convolution(1, 2, 2, 2, (3, x), (3, x), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
        "NCX",
        "OIX",
        dtype,
    )
    for x in (2, 5, 7, 9, 13, 17, 18, 25, 26, 33)
    for dtype in ("bf16", "f16")
]
MANY = random_cases(seed=77, count=120)
TILED = [
    Case(operator, Convolution(2, 1, c, o, (7, 9), (7, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), *formats)
    for operator in WINOGRAD
    for c, o, *formats in (
        (16, 32, "NXC", "XIO", "f32"),
        (7, 33, "NXC", "XIO", "f32"),
        (7, 33, "NXC", "XIO", "bf16"),
        (16, 32, "NCX", FILTERS_BY_CHANNELS[operator], "bf16"),
    )
]
# rows of 9 and 17 elements: of a vector's last part one lane is stored, and LLVM's own masked store wrote another one
TILED += [
    Case(operator, Convolution(1, 1, c, o, x, x, k, ones, apart, apart, apart), dtype=dtype)
    for operator, c, o in (("ConvolutionBackpropData", 1, 3), ("ConvTransposeBackpropData", 3, 1))
    for x, k, ones, apart in (((9,), (3,), (1,), (3,)), ((9,), (3,), (1,), (6,)), ((12, 17), (3, 3), (1, 1), (1, 6)))
    for dtype in ("bf16", "f16")
]

# a bias of fewer channels than vectors have lanes
BIASED = [
    Case("ConvolutionBackpropData", Convolution(1, 1, c, 8, (6,), (6,), (3,), (1,), (1,), (1,), (1,)), d, f, dtype)
    for c in (5, 13, 29)
    for d, f in (("NXC", "XIO"), ("NCX", "OIX"))
    for dtype in DTYPES
]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mprotect is needed")


def run_between_forbidden_pages(case: Case) -> None:
    """Both inputs and the result end at a forbidden page, then begin at one."""
    how = {"target": "llvm -mcpu=native -algorithm=auto", "schedule": WINOGRAD[case.operator]} if case in TILED else {}
    biases = {"bias": np.arange(case.convolution.c).astype(DTYPES[case.dtype])} if case in BIASED else {}
    kernel = replace(case.call, options=dict.fromkeys(biases, True), **how).compile()
    inputs = case.arrays(operands(case.convolution, case.result))
    expected = kernel(*inputs, **biases)
    for at_end in (True, False):
        out = guarded(expected.shape, DTYPES[case.dtype], at_end=at_end)
        bias = {name: guarded_copy(array, at_end=at_end) for name, array in biases.items()}
        kernel(*(guarded_copy(array, at_end=at_end) for array in inputs), out=out, **bias)
        assert np.array_equal(out, expected)


def check(name: str) -> None:
    """Run a list of cases in another process; the one it dies of is the last that it names."""
    command = [sys.executable, "-m", "tests.operators.calls.test_memory", name]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, f"exit {run.returncode} at {lines[-1] if lines else 'the start'}\n{run.stderr[-2000:]}"
    assert len(lines) == len(globals()[name])


def test_tails() -> None:
    check("CASES")


def test_biases() -> None:
    check("BIASED")


def test_tiles() -> None:
    check("TILED")


@pytest.mark.slow
def test_random_cases() -> None:
    check("MANY")


if __name__ == "__main__":
    for one in globals()[sys.argv[1]]:
        print(one, flush=True)
        run_between_forbidden_pages(one)
