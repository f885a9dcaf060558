"""Sums of many products, which are added up in blocks: exact on integers, and close to the sums in float64."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.support.building.scheduled import kernel
from tests.support.cases import layouts
from tests.support.cases.by_rule import CONVOLUTIONS, PLAIN
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules.cpu.data import summation
from tvmconvgrad.schedules.cpu.weights import summation as weights_summation
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.support.cases.sampling import in_turn
from tests.support.oracles import torch_reference

DATA, FORWARD, FILTERS = "ConvolutionBackpropData", "ConvTransposeBackpropData", "ConvolutionBackpropFilters"
_FORMATS = [("NXC", "XIO"), ("NCX", "OIX")]
FORMATS = {DATA: _FORMATS, FORWARD: [("NXC", "XOI"), ("NCX", "IOX")], FILTERS: _FORMATS}
_ONE = (1, 1)


def _square(c: int, o: int, size: int, taps: int) -> Convolution:
    pads = (taps // 2, taps // 2)
    return Convolution(1, 1, c, o, (size, size), (size, size), (taps, taps), _ONE, _ONE, pads, pads)


DEEP = [
    # 2304 products in K blocks of 16 channels, 2400 of 1x1, 3136 for few channels, 2352 by output phases
    *(
        Case(operator, _square(256, 256, 14, 3), *formats)
        for operator in (DATA, FORWARD)
        for formats in FORMATS[operator]
    ),
    Case(FORWARD, _square(2400, 40, 5, 1), *FORMATS[FORWARD][0]),
    *(Case(DATA, _square(3, 64, 21, 7), *formats) for formats in FORMATS[DATA]),
    # 392 and 637 positions in one cache block: parts of its images, and of its rows
    Case(FILTERS, Convolution(13, 32, 128, 128, (7, 7), (7, 7), (3, 3), _ONE, _ONE, _ONE, _ONE), "NXC", "XIO"),
    *(
        Case(FILTERS, Convolution(8, 32, 1024, 1024, (14, 14), (7, 7), (3, 3), (2, 2), _ONE, _ONE, (0, 0)), *formats)
        for formats in _FORMATS
    ),
    Case(DATA, Convolution(1, 1, 3, 192, (56, 56), (28, 28), (7, 7), (2, 2), _ONE, (3, 3), (2, 2))),
]


@dataclass(frozen=True)
class Way:
    """A rule with numbers of it that are not the model's."""

    rule: str
    given: dict[str, int]
    is_blocked: bool
    is_short: bool
    """Whether its cache blocks have no more positions than a block of a weights gradient: so it is on CPUs with 2 MiB
    of L2 for one case."""

    def result(self, case: Case, problem: Problem, tensors: Tensors) -> Array:
        """In canonical layout."""
        out = kernel(problem, parse_target(None), self.rule, self.given)(*case.arrays(tensors))
        return layouts.to_canonical(out, case.axes(case.result))


def _ways(problem: Problem) -> list[Way]:
    """All rules; those with cache blocks of K with two, too."""
    same, target, found = reduced(problem), parse_target(None), []
    for rule in schedules.applicable(same, target):
        counts = schedules.schedule(same, target, rule).candidates.get("k_cache_blocks", ())
        for given in [{}, *([{"k_cache_blocks": 2}] if 2 in counts else [])]:
            text = str(schedules.schedule(same, target, rule, given))
            found.append(Way(rule, given, "summation_blocks" in text, _is_short(text)))
    return found


def _is_short(text: str) -> bool:
    """Whether a schedule's text has a cache block with at most as many positions as are added up in a chain."""
    found = re.search(r"cache_block=\(([\d, ]+)\)", text)
    return found is not None and prod(map(int, found[1].split(","))) <= weights_summation.SUMMATION_BLOCK


def _check(case: Case, options: dict[str, Any]) -> None:
    problem = replace(case.call, options=options).problem()
    tensors = operands(case.convolution, case.result)
    expected = torch_reference.gradient(case.convolution, case.result, tensors).astype(np.float32)
    for way in _ways(problem):
        assert_same(way.result(case, problem, tensors), expected)


@pytest.fixture
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUMMATION_BLOCK", "SHORT_SUMMATION_BLOCK"):
        monkeypatch.setattr(summation, name, 3)
    monkeypatch.setattr(weights_summation, "SUMMATION_BLOCK", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("_short_blocks")
@pytest.mark.parametrize(
    ("convolution", "layout", "operator"), in_turn(2, [*PLAIN, *CONVOLUTIONS], (0, 1), list(FORMATS), second=1)
)
def test_every_rule_in_blocks_of_few_products(convolution: Convolution, layout: int, operator: str) -> None:
    _check(Case(operator, convolution, *FORMATS[operator][layout]), {})


@pytest.mark.usefixtures("_short_blocks")
@pytest.mark.parametrize(
    ("convolution", "layout", "dtype", "operator"),
    in_turn(4, PLAIN[:4], (0, 1), ("f16", "bf16"), (DATA, FILTERS), second=2),
)
def test_results_in_f32_of_16_bits(convolution: Convolution, layout: int, dtype: str, operator: str) -> None:
    _check(Case(operator, convolution, *FORMATS[operator][layout], dtype), {"result_dtype": "f32"})


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_errors(case: Case) -> None:
    """In the Euclidean norm: a chain of 2304 products has an error of 8.6e-7, one of 1152 has 6.1e-7; one of 392 has
    3.4e-7, and in two blocks 2.4e-7."""
    random, problem = np.random.default_rng(1), case.call.problem()
    tensors = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in case.convolution.shapes.items()
    }
    exact = torch_reference.gradient(case.convolution, case.result, tensors)
    ways = _ways(problem)
    assert any(way.is_blocked for way in ways) or all(way.is_short for way in ways)
    for way in ways:
        error = way.result(case, problem, tensors) - exact
        assert np.linalg.norm(error) < (3e-7 if case.operator == FILTERS else 7e-7) * np.linalg.norm(exact), way
