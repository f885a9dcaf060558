"""Layers whose results are known, and programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np

from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.oracles import reference

SMALL = Convolution(2, 1, 3, 4, (5, 4), (5, 4), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
PARALLEL = Convolution(4, 1, 32, 32, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
"""Large enough for several work items."""
PATIENCE = 120.0  # seconds: what takes longer hangs

FILTERS = Case("ConvolutionBackpropFilters", SMALL)
NEW_NAMES = Case("ConvolutionBackpropFilters", SMALL, new_names=True)
WIDE_FILTERS = Case("ConvolutionBackpropFilters", PARALLEL)
WIDE_DATA = Case("ConvolutionBackpropData", PARALLEL)


def layer(case: Case = FILTERS) -> tuple[Any, list[Array], Array]:
    """The kernel of a case, its inputs, and the result that it must have."""
    tensors = operands(case.convolution, case.result)
    exact = reference.gradient(case.convolution, case.result, dict(tensors))
    want: Array = np.ascontiguousarray(exact.transpose(case.axes(case.result)), DTYPES[case.dtype])
    return case.call.compile(), case.arrays(tensors), want


# Programs begin with this. `program` has built the kernels: a process that need not import a compiler starts quickly.
PRELUDE = """
import os, sys, time
import numpy as np
import tvmconvgrad as cg
from tests.runtime.layers import WIDE_DATA, WIDE_FILTERS, layer
kernel, inputs, want = layer(WIDE_FILTERS)
data, data_inputs, data_want = layer(WIDE_DATA)
def right():
    return np.array_equal(kernel(*inputs), want) and np.array_equal(data(*data_inputs), data_want)
"""


def program(code: str, prelude: str = PRELUDE, **environment: str) -> str:
    """What a Python program prints, after the prelude; it must end by itself and without an error."""
    if prelude == PRELUDE:
        layer(WIDE_FILTERS), layer(WIDE_DATA)
    paths = os.pathsep.join(path or "." for path in sys.path)
    command = [sys.executable, "-c", prelude + code]
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def floats(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Fractions, whose sum depends on its order."""
    numbers: Array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numbers
