"""The package's reference, against the tests' own; and what its judgement lets pass."""

from __future__ import annotations

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.layouts import to_canonical
from tests.support.cases.random_cases import random_cases
from tests.support.oracles import reference
from tvmconvgrad.reference import exact_bound, judge
from tvmconvgrad.reference import reference as by_definition
from tvmconvgrad.spec import Problem

CONV = Convolution(2, 1, 4, 6, (9, 9), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
CASE = Case("ConvolutionBackpropFilters", CONV)


def problem(case: Case) -> Problem:
    call = case.call
    found: Problem = getattr(cg, call.operator)(**call.attributes).problem(*call.shapes, call.shape_input, call.dtype)
    return found


def test_all_operators_layouts_and_geometries() -> None:
    for case in random_cases(seed=5, count=200):
        tensors = operands(case.convolution, case.result)
        found = by_definition(problem(case), *case.arrays(tensors))
        expected = reference.gradient(case.convolution, case.result, tensors)
        np.testing.assert_array_equal(to_canonical(found, case.axes(case.result)), expected, err_msg=str(case))


def test_the_bound_below_which_sums_are_exact() -> None:
    for case in random_cases(seed=6, count=50):
        bound, most = exact_bound(problem(case)), case.convolution.summands(case.result)
        assert most * bound**2 <= 2**24 < most * (bound + 1) ** 2
    huge = Convolution(2, 1, 1, 1, (2**24,), (2**24,), (1,), (1,), (1,), (0,), (0,))
    assert exact_bound(problem(Case("ConvolutionBackpropFilters", huge))) == 0


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_integers_must_be_equal(dtype: str) -> None:
    case = CASE.with_dtype(dtype)
    first, second = case.arrays(operands(CONV, "w"))
    right = by_definition(problem(case), first, second).astype(first.dtype)
    assert judge(problem(case), first, second, right).is_right
    wrong = right.copy()
    wrong[2, 1, 3, 0] = np.nextafter(wrong[2, 1, 3, 0], np.array(np.inf, wrong.dtype))
    verdict = judge(problem(case), first, second, wrong)
    assert verdict.exact
    assert verdict.wrong == 1


def test_fractions_may_be_rounded_but_no_product_may_be_missing() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape, np.float32) for shape in CASE.call.shapes)
    exact = by_definition(problem(CASE), first, second)
    rounded = exact.astype(np.float32)
    assert judge(problem(CASE), first, second, np.nextafter(rounded, np.float32(0))).is_right
    # the product of one pair of elements is left out of W[1, 1, 2, 3]
    rounded[1, 1, 2, 3] -= first[1, 4, 4, 2] * second[1, 4, 4, 3]
    verdict = judge(problem(CASE), first, second, rounded)
    assert not verdict.exact
    assert verdict.wrong == 1
    assert verdict.error > verdict.allowed


def test_inputs_that_may_be_rounded_to_tf32() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape, np.float32) for shape in CASE.call.shapes)
    # the 13 bits that TF32 lacks are cut off, which may be twice as much as rounding
    cut = [(values.view(np.int32) & ~0x1FFF).view(np.float32) for values in (first, second)]
    result = by_definition(problem(CASE), *cut).astype(np.float32)
    assert judge(problem(CASE), first, second, result).wrong > result.size / 2
    assert judge(problem(CASE), first, second, result, may_round=True).is_right
    result[1, 1, 2, 3] -= first[1, 4, 4, 2] * second[1, 4, 4, 3]
    assert judge(problem(CASE), first, second, result, may_round=True).wrong == 1


@pytest.mark.parametrize(("most", "exact"), [(2048, True), (2049, False)])
def test_integers_that_tf32_has_must_be_equal(most: int, exact: bool) -> None:
    shapes = CASE.call.shapes
    first, second = np.full(shapes[0], 1, np.float32), np.full(shapes[1], 1, np.float32)
    first[0, 0, 0, 0] = most
    right = by_definition(problem(CASE), first, second).astype(np.float32)
    verdict = judge(problem(CASE), first, second, right, may_round=True)
    assert (verdict.exact, verdict.is_right) == (exact, True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_is_no_number_is_wrong(value: float) -> None:
    first, second = CASE.arrays(operands(CONV, "w"))
    result = by_definition(problem(CASE), first, second).astype(np.float32)
    result[0, 0, 0, 0] = value
    assert judge(problem(CASE), first, second, result).wrong == 1
