"""f32, f16 and bf16: sums in f32 rounded once, and values that are not plain numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.oracles import reference
from tvmconvgrad.machines.host import host_features

STRIDED = Convolution(3, 2, 10, 6, (13, 9), (7, 3), (3, 3), (2, 2), (1, 2), (1, 1), (1, 0))
LONG = Convolution(2, 1, 64, 32, (30, 30), (30, 30), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
UNPADDED = Convolution(2, 1, 5, 7, (6, 11), (5, 5), (2, 3), (1, 2), (1, 1), (0, 0), (0, 0))
HALVES = ("f16", "bf16")


def cases(conv: Convolution, dtypes: tuple[str, ...]) -> list[object]:
    found = [Case(operator, conv, dtype=dtype) for dtype in dtypes for operator in OPERATORS]
    return [
        pytest.param(
            case,
            id=f"{case.operator}-{case.dtype}",
            marks=[pytest.mark.slow] if case.operator.startswith("ConvTranspose") else [],
        )
        for case in found
    ]


def rounded(case: Case, tensors: Tensors) -> Array:
    """What the case must give where f32 sums exactly: the float64 result rounded once."""
    exact = reference.gradient(case.convolution, case.result, tensors)
    assert abs(exact).max() < 2**24
    with np.errstate(over="ignore"):
        return exact.astype(DTYPES[case.dtype])


@pytest.mark.parametrize("case", [*cases(STRIDED, HALVES), *cases(LONG, HALVES)])
def test_integers_are_summed_in_f32_and_rounded_once(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    expected = rounded(case, tensors)
    assert_same(case.run(tensors), expected)


@pytest.mark.parametrize("case", cases(LONG, HALVES))
def test_a_sum_beyond_the_types_own_integers(case: Case) -> None:
    # adding ones one by one in f16 ends at 2048, in bf16 at 256
    tensors = {name: np.ones_like(array) for name, array in operands(case.convolution, case.result).items()}
    expected = rounded(case, tensors)
    assert float(expected.max()) > 256
    assert_same(case.run(tensors), expected)


@pytest.mark.parametrize("case", [*cases(STRIDED, ("f32", *HALVES)), *cases(LONG, ("f32", *HALVES))])
def test_fractions_stay_within_rounding_once(case: Case) -> None:
    conv, dtype = case.convolution, DTYPES[case.dtype]
    rng = np.random.default_rng(7)
    wanted = {name: rng.standard_normal(shape) for name, shape in conv.shapes.items() if name != case.result}
    tensors = {name: array.astype(dtype).astype(np.float32) for name, array in wanted.items()}
    exact = reference.gradient(conv, case.result, tensors)
    magnitude = reference.gradient(conv, case.result, {name: abs(array) for name, array in tensors.items()})
    sums = conv.summands(case.result) * 2.0**-24 * magnitude  # of f32, in any order
    half_ulp = np.spacing(abs(exact).astype(dtype)).astype(np.float64) / 2
    excess = abs(case.run(tensors).astype(np.float64) - exact) - (1 + 2**-7) * (sums + half_ulp)
    assert excess.max() <= 0


@pytest.mark.parametrize("case", cases(UNPADDED, ("f16",)))
def test_a_sum_beyond_f16_is_infinite(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    large = next(iter(tensors))
    tensors[large] = np.full_like(tensors[large], 60000.0)
    expected = rounded(case, tensors)
    assert np.isinf(expected).any()
    assert np.isfinite(expected).any() or case.result == "w"
    assert_same(case.run(tensors), expected)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("case", cases(UNPADDED, ("f32", *HALVES)))
def test_infinities_and_nans_reach_what_they_meet_and_nothing_else(case: Case, value: float) -> None:
    # one element in each operand in turn; no zeros and no pads, so that no product is 0 * inf
    conv = case.convolution
    ones = {name: np.ones(shape, np.float32) for name, shape in conv.shapes.items() if name != case.result}
    for name in ones:
        place = tuple(size // 2 for size in conv.shapes[name])
        tensors = {**ones, name: ones[name].copy()}
        tensors[name][place] = value
        if name == "w" and case.result == "x":
            continue  # the edges of y meet fewer taps: whether the others count as 0 * inf is open
        expected = reference.gradient(conv, case.result, tensors).astype(DTYPES[case.dtype])
        assert not np.isfinite(expected).all()
        assert np.isfinite(expected).any()
        assert_same(case.run(tensors), expected)


@pytest.mark.parametrize(("dtype", "tiny"), [("f32", 2.0**-149), ("f16", 2.0**-24), ("bf16", 2.0**-133)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_smallest_numbers_are_not_flushed_to_zero(operator: str, dtype: str, tiny: float) -> None:
    case = Case(operator, STRIDED, dtype=dtype)
    tensors = operands(case.convolution, case.result)
    first, *_ = tensors
    expected = reference.gradient(case.convolution, case.result, tensors) * tiny
    tensors[first] = tensors[first] * np.float32(tiny)
    # The instruction for pairs of bf16 flushes them (test_pairs.py); whoever minds does without it.
    target = "llvm -mcpu=native -mattr=-avx512bf16" if "avx512_bf16" in host_features() else None
    got = replace(case.call, target=target).compile()(*case.arrays(tensors))
    assert_same(layouts.to_canonical(got, case.axes(case.result)), expected.astype(DTYPES[dtype]))


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_type_makes_a_kernel_of_its_own(operator: str) -> None:
    tensors = operands(STRIDED, Case(operator, STRIDED).result)
    results = {dtype: replace(Case(operator, STRIDED), dtype=dtype).run(tensors) for dtype in DTYPES}
    assert {dtype: array.dtype for dtype, array in results.items()} == DTYPES
