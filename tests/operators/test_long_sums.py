"""Sums of many products, which are added up in blocks: exact on integers, and close to the sums in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.operators.test_schedules import CONVOLUTIONS, PLAIN
from tests.support import layouts
from tests.support.case import DTYPES, Case, assert_same
from tests.support.convolution import Array, Convolution, Tensors, operands
from tests.support.scheduled import kernel
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules.cpu.data import summation
from tvmconvgrad.spec.reducing import reduced

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.support import torch_reference

DATA, FORWARD = "ConvolutionBackpropData", "ConvTransposeBackpropData"
FORMATS = {DATA: [("NXC", "XIO"), ("NCX", "OIX")], FORWARD: [("NXC", "XOI"), ("NCX", "IOX")]}
_ONE = (1, 1)


def _square(c: int, o: int, size: int, taps: int) -> Convolution:
    pads = (taps // 2, taps // 2)
    return Convolution(1, 1, c, o, (size, size), (size, size), (taps, taps), _ONE, _ONE, pads, pads)


DEEP = [
    # 2304 products in K blocks of 16 channels and of 14, 1536 of 1x1, 3136 for few channels, 2352 by output phases
    *(Case(operator, _square(256, 256, 14, 3), *formats) for operator in FORMATS for formats in FORMATS[operator]),
    Case(DATA, _square(48, 252, 9, 3)),
    Case(FORWARD, _square(1536, 40, 5, 1), *FORMATS[FORWARD][0]),
    *(Case(DATA, _square(3, 64, 21, 7), *formats) for formats in FORMATS[DATA]),
    Case(DATA, Convolution(1, 1, 3, 192, (56, 56), (28, 28), (7, 7), (2, 2), _ONE, (3, 3), (2, 2))),
]


def _result(case: Case, rule: str, tensors: Tensors) -> Array:
    """In canonical layout, by a rule."""
    out = kernel(case.call.problem(), parse_target(None), rule, {})(*case.arrays(tensors))
    return layouts.to_canonical(out, case.axes(case.result))


def _rules(case: Case) -> list[str]:
    return schedules.applicable(reduced(case.call.problem()), parse_target(None))


@pytest.mark.slow
@pytest.mark.parametrize("operator", FORMATS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("convolution", [*PLAIN, *CONVOLUTIONS], ids=str)
def test_every_rule_in_blocks_of_few_products(
    convolution: Convolution, layout: int, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUMMATION_BLOCK", "SHORT_SUMMATION_BLOCK"):
        monkeypatch.setattr(summation, name, 3)
    case = Case(operator, convolution, *FORMATS[operator][layout])
    tensors = operands(convolution, case.result)
    expected = torch_reference.gradient(convolution, case.result, tensors).astype(DTYPES["f32"])
    for rule in _rules(case):
        assert_same(_result(case, rule, tensors), expected)


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_errors(case: Case) -> None:
    """In the Euclidean norm: a chain of 2304 products has an error of 8.6e-7, one of 1152 has 6.1e-7."""
    random = np.random.default_rng(1)
    tensors = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in case.convolution.shapes.items()
    }
    exact = torch_reference.gradient(case.convolution, case.result, tensors)
    for rule in _rules(case):
        error = _result(case, rule, tensors) - exact
        assert np.linalg.norm(error) < 7e-7 * np.linalg.norm(exact), rule
