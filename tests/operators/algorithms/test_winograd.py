"""Winograd's algorithm, forced, in whatever layout and type: with four products along an axis exact on small integers,
with six close to the sums in float64."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.building.scheduled import kernel, run
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_close_by_tiles, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.cases.sampling import covering, every
from tests.support.cases.winograd import (
    CONVOLUTIONS,
    DEEP,
    LARGER,
    RULES,
    STRIDED,
    TARGET,
    compiled,
    exact,
    forced,
    kinds,
    taps,
)
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.reference import judge

UNPADDED = [
    Convolution(1, 1, 16, 16, (22, 22), (20, 20), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 1, 16, 16, (26, 25), (20, 21), (3, 3), (1, 1), (3, 2), (0, 0), (0, 0)),
    Convolution(1, 1, 16, 16, (40, 42), (19, 20), (4, 4), (2, 2), (1, 1), (0, 0), (0, 0)),
]


def computed(case: Case, rule: str, tensors: Tensors, most: bool) -> Array:
    """The result by tiles of the least, or of the most products, in the canonical layout."""
    problem, target = case.call.problem(), parse_target(TARGET)
    products = schedules.schedule(problem, target, rule).candidates["products"]
    found = kernel(problem, target, rule, {"products": products[-1 if most else 0]})
    return layouts.to_canonical(found(*case.arrays(tensors)), case.axes(case.result))


@pytest.mark.parametrize("pair", covering(exact(), kinds, each=lambda pair: [pair[0].convolution]))
def test_sums_of_integers_are_exact(pair: tuple[Case, str]) -> None:
    case, rule = pair
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors)
    assert_same(computed(case, rule, tensors, most=False), expected.astype(DTYPES[case.dtype]))


@pytest.mark.parametrize("pair", covering(forced(), kinds, each=lambda pair: [pair[0].convolution]))
def test_large_tiles_are_close_to_float64(pair: tuple[Case, str]) -> None:
    case, rule = pair
    rng = np.random.default_rng(11)
    tensors = {role: rng.standard_normal(case.convolution.shapes[role]) for role in case.inputs}
    tensors = {role: value.astype(DTYPES[case.dtype]).astype(np.float64) for role, value in tensors.items()}
    expected = reference.gradient(case.convolution, case.result, tensors)
    assert_close_by_tiles(computed(case, rule, tensors, most=True), expected)


def test_the_larger_ones_are_of_every_plan() -> None:
    plans = [compiled(Case(operator, conv)).schedule for operator in OPERATORS[:2] for conv in LARGER]
    split_k = {"split_k=1)" in plan for plan in plans if plan.startswith("winograd-weights")}
    packs = {"packs=work_item" in plan for plan in plans if plan.startswith("winograd-data")}
    assert split_k == packs == {True, False}


@pytest.mark.parametrize("operator", every(3, OPERATORS))
@pytest.mark.parametrize(
    "conv",
    [pytest.param(LARGER[0], id="2-D"), pytest.param(CONVOLUTIONS[12], id="3-D", marks=pytest.mark.slow)],
)
def test_every_candidate_computes_the_same(operator: str, conv: Convolution) -> None:
    check_candidates(Case(operator, conv))


@pytest.mark.slow
def test_every_candidate_computes_the_same_by_phases() -> None:
    check_candidates(Case(OPERATORS[1], STRIDED[0]))


def check_candidates(case: Case) -> None:
    conv = case.convolution
    tensors = operands(conv, case.result)
    expected = reference.gradient(conv, case.result, tensors).astype(np.float32)
    for rule in RULES[case.result]:
        schedule = partial(schedules.schedule, case.call.problem(), parse_target(TARGET), rule)
        least = schedule().candidates["products"][0]
        candidates = schedule({"products": least}).candidates
        assert set(candidates) >= ({"tile", "cache_block"} if case.result == "w" else {"tile", "partition"})
        for name, values in candidates.items():
            for value in {values[0], values[-1]}:
                got = run(schedule({"products": least, name: value}), case.arrays(tensors), parse_target(TARGET))
                close = layouts.to_canonical(got, case.axes(case.result))
                assert_same(close if name != "products" else np.rint(close), expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_number_of_threads_changes_no_bit(operator: str) -> None:
    rng = np.random.default_rng(3)
    for conv in [*LARGER, *([STRIDED[0]] if operator == OPERATORS[1] else [])]:
        case = Case(operator, conv)
        inputs = case.arrays({role: rng.standard_normal(conv.shapes[role]) for role in case.inputs})
        for rule in RULES[case.result]:
            found, results = compiled(case, rule), []
            for count in (1, 2, 3):
                cg.set_num_threads(count)
                results.append(found(*inputs).tobytes())
            assert results[0] == results[1] == results[2]


THREE_TAPS = Convolution(2, 1, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("operator", "conv"),
    [
        *((operator, THREE_TAPS) for operator in OPERATORS),
        *(pytest.param(OPERATORS[1], conv, marks=[pytest.mark.slow] * (conv != DEEP[-1])) for conv in DEEP),
    ],
)
def test_the_error_is_within_four_times_that_of_direct_sums(operator: str, conv: Convolution) -> None:
    case, rng = Case(operator, conv), np.random.default_rng(5)
    tensors = {role: rng.standard_normal(conv.shapes[role]).astype(np.float32) for role in case.inputs}
    exact = reference.gradient(conv, case.result, {name: value.astype(np.float64) for name, value in tensors.items()})

    def error(got: Array) -> float:
        return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))

    direct = error(layouts.to_canonical(case.call.compile()(*case.arrays(tensors)), case.axes(case.result)))
    for rule in RULES[case.result]:
        assert error(computed(case, rule, tensors, most=True)) < 4 * direct


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("largest", [1300, None], ids=["large integers", "normal"])
def test_what_the_definition_says_of_it(operator: str, largest: int | None) -> None:
    rng = np.random.default_rng(7)
    for conv in (Convolution(1, 1, 2, 2, (9, 9), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), LARGER[2]):
        case = Case(operator, conv)
        shapes = [conv.shapes[role] for role in case.inputs]
        if largest is None:
            values = [rng.standard_normal(shape) for shape in shapes]
        else:  # whose sums f32 holds, but not those of a tile's products
            values = [rng.integers(-largest, largest, shape) for shape in shapes]
        inputs = case.arrays({role: value.astype(np.float32) for role, value in zip(case.inputs, values)})
        verdict = judge(case.call.problem(), *inputs, compiled(case)(*inputs), by_tiles=True)
        assert not verdict.exact
        assert verdict.is_right


@pytest.mark.parametrize("value", [np.inf, pytest.param(np.nan, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("operator", "conv"), [*product((OPERATORS[1], OPERATORS[3]), UNPADDED[:2]), (OPERATORS[1], UNPADDED[2])]
)
def test_an_infinity_stays_with_the_tiles_that_it_meets(operator: str, conv: Convolution, value: float) -> None:
    case = Case(operator, conv)
    tensors = {role: np.ones(conv.shapes[role], np.float32) for role in case.inputs}
    name = next(role for role in case.inputs if role != "w")
    place = tuple(size // 2 for size in conv.shapes[name])
    tensors[name][place] = value
    expected = reference.gradient(conv, case.result, tensors)
    bad = ~np.isfinite(expected)
    assert bad.any()
    met = np.argwhere(bad)[:, 2:]
    for most, tile in ((False, 5 - taps(conv)[0]), (True, 4)):
        got = computed(case, RULES[case.result][0], tensors, most)
        assert not np.isfinite(got[bad]).any()
        finite = np.isfinite(got)
        np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-5 if most else 0)
        reached = np.argwhere(~finite)[:, 2:]
        around = [(tile - 1) * d * s for d, s in zip(conv.dilations, conv.strides)]
        assert (reached.min(0) >= met.min(0) - around).all()
        assert (reached.max(0) <= met.max(0) + around).all()
