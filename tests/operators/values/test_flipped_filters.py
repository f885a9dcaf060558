"""Filters whose taps lie from the last to the first, as JAX's transposed convolutions have them, by every rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import operands
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering
from tests.support.oracles import reference


@pytest.mark.parametrize("case", covering(random_cases(seed=42, count=80)))
def test_a_flipped_filter_gives_the_same(case: Case) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.kernels import get_kernel
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.spec.reducing import reduced

    problem = replace(case.call.problem(), flips_filter=True)
    taps = range(2, 2 + case.convolution.rank)
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors)
    if case.result == "w":
        expected = np.flip(expected, taps)
    else:
        tensors["w"] = np.flip(tensors["w"], taps)
    for rule in schedules.applicable(reduced(problem), parse_target(None)) or [None]:
        got = get_kernel(problem, schedule=rule)(*case.arrays(tensors))
        assert_same(layouts.to_canonical(got, case.axes(case.result)), expected.astype(got.dtype))
