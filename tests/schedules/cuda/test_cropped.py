"""Problems of which products meet only a part, on an emulated GPU: each rule computes the part, and zeros beside it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import every
from tests.support.gpu.cases import SM_90, check_program, problem_of, program_of
from tests.support.gpu.emulator import ORDERS, Emulator, needs_emulator
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler.cuda.codegen import generate

pytestmark = needs_emulator

CONVOLUTIONS = [
    Convolution(2, 1, 16, 32, (1, 5), (2, 7), (3, 4), (2, 1), (1, 1), (1, 3), (3, 2)),
    Convolution(2, 1, 24, 16, (3,), (4,), (5,), (3,), (4,), (11,), (12,)),
    Convolution(2, 16, 16, 16, (2, 1), (3, 2), (3, 2), (1, 3), (2, 1), (2, 2), (3, 2)),
]
TAPS_APART = [
    Convolution(2, 1, 8, 16, (1, 2), (4, 4), (5, 7), (3, 4), (1, 1), (7, 6), (8, 11)),
    Convolution(2, 16, 16, 16, (2,), (9,), (6,), (3,), (4,), (20,), (23,)),
]
POSITIONS_APART = [
    Convolution(2, 1, 16, 8, (12,), (2,), (3,), (1,), (5,), (0,), (0,)),
    Convolution(2, 16, 16, 16, (12,), (2,), (3,), (1,), (5,), (0,), (0,)),
]
"""Between elements of the result that something meets there are some that nothing does."""
APART = [
    *itertools.product([op for op in OPERATORS if op != "ConvolutionBackpropData"], TAPS_APART),
    *itertools.product(["ConvolutionBackpropData"], POSITIONS_APART),
]
NOTHING = Convolution(2, 1, 3, 4, (1,), (2,), (1,), (2,), (1,), (1,), (1,))
CASES = [
    Case(operator, conv, *formats, dtype, output_padding=None if operator == OPERATORS[0] else conv.beyond)
    for place, conv in enumerate(CONVOLUTIONS)
    for turn, operator in enumerate(OPERATORS)
    for formats in [(("NXC", "XIO"), ("NCX", "OIX"))[(place + turn) % 2]]
    for dtype in [("f32", "f16", "bf16")[(place + turn) % 3]]
]


@pytest.mark.parametrize("case", every(3, CASES))
def test_each_rule(emulator: Emulator, case: Case) -> None:
    problem = problem_of(case)
    assert problem.crop
    for rule in schedules.applicable(problem, SM_90):
        program = generate(schedules.schedule(problem, SM_90, rule).module, SM_90)
        check_program(emulator, case, program, ("forward late",))


@pytest.mark.parametrize(("operator", "conv"), APART)
def test_what_no_product_meets_is_zero_beside_infinities(emulator: Emulator, operator: str, conv: Convolution) -> None:
    case = Case(operator, conv, output_padding=None if operator == OPERATORS[0] else conv.beyond)
    ones = {name: np.ones(conv.shapes[name], np.float32) for name in conv.shapes if name != case.result}
    met = reference.gradient(conv, case.result, ones) > 0
    assert not met.all()
    inputs = case.arrays({name: array * np.float32(np.inf) for name, array in ones.items()})
    for rule in schedules.applicable(problem_of(case), SM_90):
        (got,) = emulator.run(program_of(case, rule)[1], inputs, case.shape(case.result), ORDERS[:1])
        result = layouts.to_canonical(got, case.axes(case.result))
        assert_same(result[~met], np.zeros_like(result[~met]))
        assert not np.isfinite(result[met]).any()


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_is_met(emulator: Emulator, operator: str) -> None:
    case = Case(operator, NOTHING, output_padding=None if operator == OPERATORS[0] else NOTHING.beyond)
    problem = problem_of(case)
    assert schedules.applicable(problem, SM_90) == ["zero"]
    program = generate(schedules.schedule(problem, SM_90).module, SM_90)
    check_program(emulator, case, program)
