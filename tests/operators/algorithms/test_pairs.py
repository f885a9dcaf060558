"""Sums of bf16 two products at a time: by AVX512_BF16, where this machine's CPU has it, and by AArch64's BFDOT under
emulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering, in_turn
from tests.support.cpu.emulation import Emulation, needs_emulator
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.host import host_features
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.runtime.native import load_function
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.tir.annotations import PAIRS

HAS_PAIRS = "avx512_bf16" in host_features()
TARGETS = {"native": "llvm -mcpu=x86-64-v4 -mattr=+avx512bf16", "emulated": "llvm -mcpu=neoverse-v1"}
WAYS = [
    pytest.param("native", marks=pytest.mark.skipif(not HAS_PAIRS, reason="this CPU has no AVX512_BF16")),
    pytest.param("emulated", marks=[pytest.mark.slow, needs_emulator]),
]
RULES = {"data-channels", "data-groups", "data-positions", "weights-o", "weights-c", "weights-rows"}
ONE, NO = (1, 1), (0, 0)
CONVOLUTIONS = [
    # pairs of images; of halves of the only one, without a row in common and with one; of three
    Convolution(4, 1, 32, 48, (8, 9), (8, 9), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 1, 32, 48, (8, 9), (8, 9), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(3, 1, 16, 32, (13, 9), (6, 5), (3, 3), (2, 2), (1, 2), (1, 2), (0, 2)),
    Convolution(1, 1, 32, 48, (7, 9), (7, 9), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(3, 2, 32, 64, (9, 8), (5, 4), (3, 3), (2, 2), ONE, ONE, ONE),
    # a single row; rows that mostly meet pads: no pairs
    Convolution(3, 1, 32, 48, (1, 9), (1, 9), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 1, 32, 48, (7, 9), (7, 9), (3, 3), ONE, (6, 6), (6, 6), (6, 6)),
    # tails of channels: an odd number of them, fewer than a vector, one
    Convolution(2, 1, 17, 33, (6, 11), (6, 11), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 3, 20, (12, 13), (6, 7), (3, 3), (2, 2), ONE, ONE, ONE),
    Convolution(1, 1, 1, 5, (8, 10), (8, 10), (3, 3), ONE, ONE, ONE, ONE),
    # nothing to copy; phases that begin at different positions; groups; 1-D and 3-D
    Convolution(2, 1, 64, 96, (7, 8), (7, 8), ONE, ONE, ONE, NO, NO),
    Convolution(2, 1, 64, 32, (16, 16), (8, 8), (4, 4), (2, 2), ONE, ONE, ONE),
    Convolution(2, 3, 30, 48, (7, 9), (4, 5), (3, 3), (2, 2), ONE, ONE, ONE),
    # vectors over groups of several channels: a number of vectors, rounded up, with an odd number of channels, strided
    Convolution(1, 16, 128, 128, (6, 7), (6, 7), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 20, 180, 160, (5, 8), (5, 8), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 32, 256, 256, (9, 9), (5, 5), (3, 3), (2, 2), ONE, ONE, ONE),
    Convolution(1, 1, 16, 24, (40,), (36,), (3,), (1,), (2,), (0,), (0,)),
    Convolution(1, 1, 10, 24, (4, 5, 6), (4, 5, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    # pairs of positions of single channels: rows of one vector and of several, an odd stride, more pads than taps
    Convolution(2, 5, 5, 5, (9, 40), (9, 40), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 3, 3, 3, (13, 70), (5, 24), (3, 3), (3, 3), ONE, ONE, (2, 2)),
    Convolution(1, 4, 4, 4, (6, 7), (10, 11), (3, 3), ONE, ONE, (3, 3), (3, 3)),
]


def cases() -> list[Case]:
    """All convolutions and operators, in the layouts in turn."""
    found: list[Case] = []
    for conv in CONVOLUTIONS:
        for operator in OPERATORS:
            formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(operator)]
            chosen = [("NXC", "XIO"), formats[(len(found) // 2) % len(formats)]]
            found += [Case(operator, conv, *each, "bf16") for each in dict.fromkeys(chosen)]
    return found


@lru_cache(maxsize=8)
def compiled(problem: Problem, target: Target, rule: str, given: tuple[tuple[str, int], ...]) -> bytes:
    """The library of a rule with these numbers: a test may call all rules with one tensor after the other."""
    return llvm.compile_scheduled(schedules.schedule(problem, target, rule, dict(given)), target)


@dataclass(frozen=True)
class Way:
    """Kernels of a target, called natively or under emulation."""

    target: Target
    emulation: Emulation | None

    def rules(self, case: Case) -> list[str]:
        """The rules that pair products and take a case."""
        return [rule for rule in schedules.applicable(reduced(case.call.problem()), self.target) if rule in RULES]

    def pairing(self, case: Case) -> list[str]:
        """Those of them that pair the products of this case."""
        programs = {rule: schedules.schedule(case.call.problem(), self.target, rule) for rule in self.rules(case)}
        return [rule for rule, scheduled in programs.items() if PAIRS in scheduled.module.script()]

    def computed(self, case: Case, rule: str, tensors: Tensors, choices: Mapping[str, int] | None = None) -> Array:
        """The result, in canonical layout, by a rule that is forced, with numbers of it that a search might draw."""
        problem, given = case.call.problem(), tuple((choices or {}).items())
        call = self._native if self.emulation is None else self._emulated
        inputs = map(np.ascontiguousarray, case.arrays(tensors))
        result = call(compiled(problem, self.target, rule, given), problem, *inputs)
        return layouts.to_canonical(result.reshape(case.shape(case.result)), case.axes(case.result))

    def check(self, case: Case, rule: str, choices: Mapping[str, int] | None = None) -> None:
        """Compare with the definition."""
        tensors = operands(case.convolution, case.result)
        expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES["bf16"])
        assert_same(self.computed(case, rule, tensors, choices), expected)

    def _native(self, library: bytes, problem: Problem, first: Array, second: Array) -> Array:
        result = np.full(problem.output_shape, np.nan, DTYPES["bf16"])
        load_function(library, problem)(first.ctypes.data, second.ctypes.data, result.ctypes.data)
        return result

    def _emulated(self, library: bytes, problem: Problem, *inputs: Array) -> Array:
        assert self.emulation is not None
        return self.emulation.run("max", library, inputs, (*problem.input_shapes, problem.output_shape), 1)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    name = request.param
    emulation = Emulation.prepare(tmp_path_factory.mktemp("emulation")) if name == "emulated" else None
    return Way(parse_target(TARGETS[name]), emulation)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
@pytest.mark.parametrize("case", covering(cases(), each=lambda case: [case.convolution]))
def test_sums_are_the_same(case: Case, way: Way) -> None:
    rules = way.rules(case)
    assert rules
    for rule in rules:
        way.check(case, rule)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_each_rule_that_pairs_is_among_them(way: Way) -> None:
    assert {rule for case in cases() for rule in way.pairing(case)} == RULES


@pytest.mark.parametrize("way", WAYS[1:], indirect=True)
@pytest.mark.parametrize(
    ("conv", "operator", "data_format"), in_turn(2, CONVOLUTIONS, OPERATORS[:2], layouts.DATA_FORMATS, second=1)
)
def test_sums_are_the_same_under_emulation(conv: Convolution, operator: str, data_format: str, way: Way) -> None:
    case = Case(operator, conv, data_format, dtype="bf16")
    rules = way.rules(case)
    assert rules
    for rule in rules:
        way.check(case, rule)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
def test_a_shared_pair_whose_place_has_the_lane_in_a_quotient(way: Way) -> None:
    """As DCGAN's judge3: work items pack images of their own, of many channels, and have a partition of N."""
    conv = Convolution(16, 1, 128, 512, (16, 16), (8, 8), (4, 4), (2, 2), ONE, ONE, ONE)
    way.check(Case("ConvolutionBackpropData", conv, dtype="bf16"), "data-channels")


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
@pytest.mark.parametrize("case", covering(random_cases(seed=6, count=40), quick=0))
def test_random_attributes(case: Case, way: Way) -> None:
    case = case.with_dtype("bf16")
    rules = way.rules(case)
    if not rules:
        pytest.skip("no rule that pairs products takes it")
    for rule in rules:
        way.check(case, rule)


@pytest.mark.parametrize("way", WAYS[:1], indirect=True)
@pytest.mark.parametrize(("operator", "data_format"), in_turn(3, OPERATORS, layouts.DATA_FORMATS))
def test_every_number_that_a_search_may_draw(operator: str, data_format: str, way: Way) -> None:
    conv = Convolution(2, 1, 64, 64, (12, 12), (12, 12), (3, 3), ONE, ONE, ONE, ONE)
    case = Case(operator, conv, data_format, dtype="bf16")
    for rule in way.rules(case):
        candidates = schedules.schedule(case.call.problem(), way.target, rule).candidates
        assert candidates
        for name, values in candidates.items():
            way.check(case, rule, {name: values[-1]})


@pytest.mark.parametrize(
    ("operator", "y", "value"),
    in_turn(2, ("ConvolutionBackpropFilters", "ConvTransposeBackpropFilters"), ((4, 5), (5, 5)), (np.inf, np.nan)),
)
def test_infinities_of_one_image_reach_what_they_meet_and_nothing_else(
    operator: str, y: tuple[int, int], value: float, way: Way
) -> None:
    x = (y[0] + 1, 11)
    case = Case(operator, Convolution(1, 1, 5, 7, x, y, (2, 3), (1, 2), ONE, NO, NO), dtype="bf16")
    ones = {name: np.ones(case.convolution.shapes[name], np.float32) for name in case.inputs}
    for name, row in product(ones, (0, 2, -1)):
        tensors = {**ones, name: ones[name].copy()}
        tensors[name][0, 2, row, 3] = value
        expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES["bf16"])
        assert np.isfinite(expected).any()
        for rule in way.rules(case):
            assert_same(way.computed(case, rule, tensors), expected)


@pytest.mark.parametrize("data_format", layouts.DATA_FORMATS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_below_the_least_normal_one_are_zeros(operator: str, data_format: str, way: Way) -> None:
    """That is how the instruction is defined, whatever a process has set; f32, and CPUs without it, keep them."""
    case = Case(operator, CONVOLUTIONS[0], data_format, dtype="bf16")
    tensors = operands(case.convolution, case.result)
    tensors[case.inputs[0]] *= np.float32(2.0**-133)
    rules = way.pairing(case)
    assert rules
    for rule in rules:
        assert not way.computed(case, rule, tensors).any()
