"""Numbers that a search may change: every candidate gives the same result, and what is none is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import every, in_turn
from tests.support.oracles import reference
from tvmconvgrad.spec import Problem

CONVOLUTIONS = [
    Convolution(2, 1, 32, 32, (12, 12), (12, 12), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 32, 32, 32, (12, 11), (6, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 64, 64, (12, 12), (12, 12), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
]
PADDED = [
    Convolution(2, 1, 16, 32, (9, 7), (10, 8), (3, 3), (1, 1), (2, 2), (2, 3), (3, 2)),
    Convolution(1, 3, 3, 3, (3, 150), (3, 150), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 2, 96, 64, (5, 7), (3, 4), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 2, 8, 16, (6, 8, 10), (3, 4, 5), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
]
"""Wherever their data is packed, with pads or without, tiles must meet the right elements of it."""

WHOLE_TILES = Convolution(2, 1, 64, 64, (16, 16), (8, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1))
"""Its channels are whole tiles in any layout."""

SPLIT_ROWS = Convolution(1, 1, 64, 64, (28,), (28,), (1,), (1,), (1,), (0,), (0,))
"""With AVX2 its row is of several work items, and no whole tiles."""

OPERATORS = ("ConvolutionBackpropFilters", "ConvolutionBackpropData", "ConvTransposeBackpropData")


def _problem(case: Case) -> Problem:
    call = case.call
    operator = getattr(cg, call.operator)(**call.attributes)
    found: Problem = operator.problem(*call.shapes, call.shape_input, call.dtype)
    return found


def _cases() -> list[Case]:
    cases = [Case(operator, conv, "NXC", "XIO", "f32") for conv in CONVOLUTIONS for operator in OPERATORS]
    return [*cases, Case(OPERATORS[0], CONVOLUTIONS[1], "NCX", "OIX", "f32")]


@pytest.mark.parametrize("case", every(4, _cases()))
def test_every_candidate_computes_the_same(case: Case) -> None:
    from tests.support.building.scheduled import run
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    problem, target = _problem(case), parse_target(None)
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(np.float32)
    default = schedules.schedule(problem, target)
    assert default.candidates
    for name, candidates in default.candidates.items():
        for value in (candidates[0], candidates[-1]):
            got = run(schedules.schedule(problem, target, default.rule, {name: value}), case.arrays(tensors), target)
            assert_same(layouts.to_canonical(got, case.axes(case.result)), expected)


STRIDED = [
    (16, (3, 3), (8, 8)),
    (6, (4, 4), (12, 5)),
    (6, (5, 2), (8, 8)),
    (16, (4, 4), (12, 5)),
    (6, (1, 3), (12, 5)),
    (16, (5, 2), (7, 9)),
    (6, (3, 3), (7, 9)),
]
"""Channels, kernels and images of data gradients with stride 2."""


@pytest.mark.parametrize("strided", every(2, STRIDED))
def test_staged_results(strided: tuple[int, tuple[int, int], tuple[int, int]]) -> None:
    """Output phases that interleave, in every split into work items: those with whole planes of whole lines stage them,
    unless zeros are written beside them."""
    from tests.support.building.scheduled import run
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.tir.annotations import STAGED

    channels, kernel, size = strided
    y = tuple((extent + 2 - taps) // 2 + 1 for extent, taps in zip(size, kernel))
    conv = Convolution(2, channels, channels, channels, size, y, kernel, (2, 2), (1, 1), (1, 1), (1, 1))
    case = Case(OPERATORS[1], conv, "NCX", "OIX", "f32")
    problem, target = _problem(case), parse_target("llvm -mcpu=x86-64-v3")
    tensors = operands(conv, case.result)
    expected = reference.gradient(conv, case.result, tensors).astype(np.float32)
    found = schedules.schedule(problem, target, "data-positions").candidates
    staged = 0
    least_and_most = found["partition_tiles"][0], found["partition_tiles"][-1]
    for groups, tiles in product(found["group_partitions"], least_and_most):
        numbers = {"group_partitions": groups, "partition_tiles": tiles, "n_partitions": 1}
        scheduled = schedules.schedule(problem, target, "data-positions", numbers)
        if "non_temporal" in scheduled.candidates:
            scheduled = schedules.schedule(problem, target, "data-positions", {**numbers, "non_temporal": 1})
        staged += STAGED in scheduled.module.script()
        got = run(scheduled, case.arrays(tensors), target)
        assert_same(layouts.to_canonical(got, case.axes(case.result)), expected)
    assert bool(staged) == (min(kernel) > 1 and channels * size[0] * size[1] % 16 == 0)


@pytest.mark.parametrize(("operator", "conv", "data_format"), in_turn(6, OPERATORS, PADDED, ("NXC", "NCX"), second=3))
def test_every_place_to_pack(operator: str, conv: Convolution, data_format: str) -> None:
    from tests.support.building.scheduled import run
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    case = Case(operator, conv, data_format, "XIO", "f32")
    problem, target = _problem(case), parse_target(None)
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(np.float32)
    places = set()
    for rule in schedules.applicable(problem, target):
        candidates = schedules.schedule(problem, target, rule).candidates
        drawn = {name: candidates[name] for name in ("packs", "packs_filter", "k_cache_blocks") if name in candidates}
        for values in product(*drawn.values()):
            scheduled = schedules.schedule(problem, target, rule, dict(zip(drawn, values)))
            places.add(str([scheduled.plan.get(name) for name in drawn]))
            got = run(scheduled, case.arrays(tensors), target)
            assert_same(layouts.to_canonical(got, case.axes(case.result)), expected)
    assert len(places) > 1


@pytest.mark.parametrize(
    ("formats", "operator", "rows"),
    in_turn(
        4, (("NXC", "XIO", "f16"), ("NCX", "OIX", "f32"), ("NCX", "OIX", "f16")), OPERATORS[1:], ("whole", "split")
    ),
)
def test_cache_blocks_of_k_that_a_scratch_accumulator_adds_up(
    formats: tuple[str, str, str], operator: str, rows: str
) -> None:
    """In f32, by channels: sums of 16 bits are rounded once, and those for NCX written along positions."""
    from tests.support.building.scheduled import run
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.host import missing_features
    from tvmconvgrad.machines.targets import parse_target

    data_format, _, dtype = formats
    conv = SPLIT_ROWS if rows == "split" else PADDED[2] if data_format == "NXC" else WHOLE_TILES
    case = Case(operator, conv, *formats)
    problem, target = _problem(case), parse_target("llvm -mcpu=x86-64-v3" if rows == "split" else None)
    if rows == "split" and missing_features({"avx2"}):
        pytest.skip("this CPU has no AVX2")
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES[dtype])
    rule = "data-channels"
    *_, most = schedules.schedule(problem, target, rule).candidates["k_cache_blocks"]
    assert most > 1
    for packs_filter, partition_tiles, packs in product((0, 1), (4, 64), (0, 1)):
        given = {
            "k_cache_blocks": most,
            "packs_filter": packs_filter,
            "partition_tiles": partition_tiles,
            "packs": packs,
        }
        scheduled = schedules.schedule(problem, target, rule, given)
        got = run(scheduled, case.arrays(tensors), target)
        assert_same(layouts.to_canonical(got, case.axes(case.result)), expected)


def test_a_number_that_is_no_candidate_is_an_error() -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    problem = _problem(Case("ConvolutionBackpropData", CONVOLUTIONS[0], "NXC", "XIO", "f32"))
    with pytest.raises(ValueError, match="decisions: n_partitions is 77, expected one of 1"):
        schedules.schedule(problem, parse_target(None), None, {"n_partitions": 77})
