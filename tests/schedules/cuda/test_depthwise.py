"""Depthwise gradients on an emulated GPU: exact on integers, in every order of threads."""

from __future__ import annotations

import pytest

from tests.support.case import OPERATORS, Case
from tests.support.convolution import Convolution
from tests.support.gpu import Emulator, needs_emulator
from tests.support.gpu_cases import check, program_of, takes
from tests.support.sampling import every

pytestmark = needs_emulator
CONVOLUTIONS = [
    Convolution(2, 16, 16, 16, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 8, 8, 8, (9, 10), (5, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
    Convolution(1, 19, 19, 19, (8, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (0, 1)),
    Convolution(2, 24, 24, 24, (13,), (13,), (5,), (1,), (1,), (2,), (2,)),
    Convolution(1, 8, 8, 8, (6, 7, 9), (6, 7, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Convolution(1, 12, 12, 12, (14, 17), (5, 5), (3, 2), (2, 3), (2, 3), (0, 0), (0, 0)),
    # more vectors than a warp has threads, and taps that do not all fit in registers
    Convolution(1, 136, 136, 136, (8, 7), (8, 7), (7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
]


def cases() -> list[Case]:
    found = []
    for conv in CONVOLUTIONS:
        for operator in OPERATORS:
            formats = (("NXC", "XIO", "f16"), ("NCX", "OIX", "f32"), ("NXC", "OIX", "bf16"))
            found += [Case(operator, conv, *each) for each in formats]
    return found


@pytest.mark.parametrize("case", every(5, cases()))
def test_results_are_exact(emulator: Emulator, case: Case) -> None:
    check(emulator, case, "depthwise")


@pytest.mark.parametrize("given", [{"lanes": 1}, {"lanes": 2, "run": 2}, {"run": 1}, {"run": 8}], ids=str)
@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_other_numbers(emulator: Emulator, operator: str, given: dict[str, int]) -> None:
    check(emulator, Case(operator, CONVOLUTIONS[0], dtype="f32"), "depthwise", given)


def test_a_filter_gradient_in_parts(emulator: Emulator) -> None:
    large = Convolution(8, 16, 16, 16, (40, 40), (40, 40), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    scheduled, _ = program_of(Case(OPERATORS[0], large), "depthwise")
    assert max(scheduled.candidates["blocks"]) >= 4
    check(emulator, Case(OPERATORS[0], large), "depthwise", {"blocks": 4})


def test_groups_of_several_channels_are_for_other_rules() -> None:
    several = Convolution(1, 2, 4, 4, (5,), (5,), (3,), (1,), (1,), (1,), (1,))
    multiplied = Convolution(1, 2, 2, 4, (5,), (5,), (3,), (1,), (1,), (1,), (1,))
    for conv in (several, multiplied):
        assert not any(takes("depthwise", Case(operator, conv)) for operator in OPERATORS)
