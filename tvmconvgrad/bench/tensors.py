"""Inputs whose sums are exact, where they lie, and whether a result is the right one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.reference import F32_INTEGERS, exact_bound, products
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, aligned_empty
from tvmconvgrad.spec import Problem

BOUND = 3  # larger ones make the sums of long filters overflow f16
_UNITS = 2


class WrongResult(Exception):
    """Our own result is not the right one."""


def make_inputs(problem: Problem, job: Job, seed: int) -> Tensors:
    """Small integers for both inputs, canonical, as int8: f32 holds all their sums, in whatever order.

    ValueError for more products than even ones and zeros allow.
    """
    bound = min(exact_bound(problem), BOUND)
    if not bound:
        raise ValueError(f"{problem}: an element sums {products(problem)} products, expected at most {F32_INTEGERS}")
    rng = np.random.default_rng(seed)
    return {role: rng.integers(-bound, bound + 1, job.shapes[role], np.int8) for role in job.inputs}


def aligned(array: Array) -> Array:
    """A copy that begins with a cache line, as the memory does that the peers allocate for themselves."""
    copy: Array = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def check_ours(label: str, result: Array, exact: Array, dtype: str, by_tiles: bool = False) -> None:
    """Raise WrongResult unless each element is the exact sum, rounded once; or, where Winograd's algorithm computed the
    result `by_tiles`, close to it: in f32, nearer to that integer than to any other."""
    if by_tiles and dtype != "f32":
        told = difference(result, exact, dtype)
        if told:
            raise WrongResult(f"{label}: {told}")
        return
    if by_tiles:
        result = np.rint(result)
    with np.errstate(over="ignore"):
        expected = exact.astype(NUMPY_DTYPES[dtype]).astype(np.float32)
    wrong = np.argwhere(result != expected)
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        raise WrongResult(
            f"{label}: {len(wrong)} of {result.size} elements are wrong: at {place} of the canonical layout "
            f"{result[place]:g}, expected {expected[place]:g}"
        )


def difference(result: Array, exact: Array, dtype: str) -> str | None:
    """How a peer's result differs: in f32 at all, otherwise by more than 2 units of the type's precision."""
    if dtype == "f32":
        wrong = int(np.count_nonzero(result != exact))
        return f"{wrong} of {result.size} elements differ" if wrong else None
    info: Any = ml_dtypes.finfo(NUMPY_DTYPES[dtype])  # type: ignore[no-untyped-call]
    largest = float(abs(exact).max())
    error = float(abs(result.astype(np.float64) - exact).max())
    units = error / (float(info.eps) * largest) if largest else error
    return None if units <= _UNITS else f"off by up to {units:.3g} units of {dtype}'s precision"
