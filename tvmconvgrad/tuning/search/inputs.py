"""What candidates are run on: small integers, whose sums are exact in whatever order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tvmconvgrad.bench.tensors import BOUND, aligned
from tvmconvgrad.reference import exact_bound
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.spec import Problem

Array = npt.NDArray[Any]


class WrongResult(ValueError):
    """A candidate computes something else than the default."""


def make_inputs(problem: Problem) -> tuple[Array, Array]:
    """Small integers for both inputs, always the same, at cache lines."""
    bound = max(min(exact_bound(problem), BOUND), 1)  # ones of both signs hardly ever sum up to what is inexact
    rng = np.random.default_rng(0)
    dtype = NUMPY_DTYPES[problem.dtype]
    shapes = problem.input_shapes
    first, second = (aligned(rng.integers(-bound, bound + 1, shape, np.int8).astype(dtype)) for shape in shapes)
    return first, second
