"""Problems of which products meet only a part, on an emulated GPU: each rule computes the part, and zeros beside it."""

from __future__ import annotations

import pytest

from tests.support.case import OPERATORS, Case
from tests.support.convolution import Convolution
from tests.support.gpu import Emulator, needs_emulator
from tests.support.gpu_cases import SM_90, check_program, problem_of
from tvmconvgrad import schedules
from tvmconvgrad.compiling.cuda.codegen import generate

pytestmark = needs_emulator

CONVOLUTIONS = [
    Convolution(2, 1, 16, 32, (1, 5), (2, 7), (3, 4), (2, 1), (1, 1), (1, 3), (3, 2)),
    Convolution(2, 1, 24, 16, (3,), (4,), (5,), (3,), (4,), (11,), (12,)),
    Convolution(2, 16, 16, 16, (2, 1), (3, 2), (3, 2), (1, 3), (2, 1), (2, 2), (3, 2)),
]
NOTHING = Convolution(2, 1, 3, 4, (1,), (2,), (1,), (2,), (1,), (1,), (1,))
CASES = [
    Case(operator, conv, *formats, dtype, output_padding=None if operator == OPERATORS[0] else conv.beyond)
    for place, conv in enumerate(CONVOLUTIONS)
    for turn, operator in enumerate(OPERATORS)
    for formats in [(("NXC", "XIO"), ("NCX", "OIX"))[(place + turn) % 2]]
    for dtype in [("f32", "f16", "bf16")[(place + turn) % 3]]
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_rule(emulator: Emulator, case: Case) -> None:
    problem = problem_of(case)
    assert problem.crop
    for rule in schedules.applicable(problem, SM_90):
        program = generate(schedules.schedule(problem, SM_90, rule).module, SM_90)
        check_program(emulator, case, program, ("forward late",))


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_is_met(emulator: Emulator, operator: str) -> None:
    case = Case(operator, NOTHING, output_padding=None if operator == OPERATORS[0] else NOTHING.beyond)
    problem = problem_of(case)
    assert schedules.applicable(problem, SM_90) == ["zero"]
    program = generate(schedules.schedule(problem, SM_90).module, SM_90)
    check_program(emulator, case, program)
