"""Depthwise gradients on an emulated GPU: exact on integers, in every order of threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import covering
from tests.support.gpu.cases import check, program_of, takes
from tests.support.gpu.emulator import ORDERS, Emulator, needs_emulator

pytestmark = needs_emulator
CONVOLUTIONS = [
    Convolution(2, 16, 16, 16, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 8, 8, 8, (9, 10), (5, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
    Convolution(1, 19, 19, 19, (8, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (0, 1)),
    Convolution(2, 24, 24, 24, (13,), (13,), (5,), (1,), (1,), (2,), (2,)),
    Convolution(1, 8, 8, 8, (6, 7, 9), (6, 7, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Convolution(1, 12, 12, 12, (14, 17), (5, 5), (3, 2), (2, 3), (2, 3), (0, 0), (0, 0)),
    # vectors in two blocks of groups, and sums of all taps only with few groups
    Convolution(1, 136, 136, 136, (8, 7), (8, 7), (7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
    # taps too many for registers, and to be written out
    Convolution(1, 8, 8, 8, (14, 12), (14, 12), (13, 11), (1, 1), (1, 1), (6, 5), (6, 5)),
    # many phases: two that have as many taps, with positions of their own, and more than a thread may have
    Convolution(1, 8, 8, 8, (10, 9), (4, 4), (4, 4), (2, 2), (1, 1), (0, 1), (0, 0)),
    Convolution(1, 8, 8, 8, (13, 19), (2, 3), (7, 7), (6, 6), (1, 1), (0, 0), (0, 0)),
]


def cases() -> list[Case]:
    found = []
    for conv in CONVOLUTIONS:
        for operator in OPERATORS:
            formats = (("NXC", "XIO", "f16"), ("NCX", "OIX", "f32"), ("NXC", "OIX", "bf16"))
            found += [Case(operator, conv, *each) for each in formats]
    return found


@pytest.mark.parametrize("case", covering(cases(), each=lambda case: [case.convolution]))
def test_results_are_exact(emulator: Emulator, case: Case) -> None:
    check(emulator, case, "depthwise")


@pytest.mark.parametrize(
    "given", [{"lanes": 1}, {"lanes": 2, "run": 2}, {"run": 1, "rows": 1}, {"run": 8}, {"run": 4, "rows": 4}], ids=str
)
@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_other_numbers(emulator: Emulator, operator: str, given: dict[str, int]) -> None:
    check(emulator, Case(operator, CONVOLUTIONS[0], dtype="f32"), "depthwise", given)


def test_a_filter_gradient_in_parts(emulator: Emulator) -> None:
    large = Convolution(8, 16, 16, 16, (40, 40), (40, 40), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    scheduled, _ = program_of(Case(OPERATORS[0], large), "depthwise")
    assert max(scheduled.candidates["blocks"]) >= 4
    check(emulator, Case(OPERATORS[0], large), "depthwise", {"blocks": 4})


@pytest.mark.parametrize(
    ("conv", "kernels"),
    [(CONVOLUTIONS[1], 1), (CONVOLUTIONS[5], 2), (CONVOLUTIONS[9], 4)],
    ids=["four phases", "and zeros", "more than a thread may have"],
)
def test_kernels_of_phases(conv: Convolution, kernels: int) -> None:
    _, program = program_of(Case(OPERATORS[1], conv), "depthwise")
    assert len(program.launches) == kernels


def test_few_images_have_small_tiles() -> None:
    """So that there are threads for all of a GPU."""

    def positions(batch: int) -> int:
        conv = Convolution(batch, 32, 32, 32, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
        drawn = program_of(Case(OPERATORS[1], conv), "depthwise")[0].plan
        return drawn["run"] * drawn["rows"]

    assert positions(64) == 16
    assert positions(1) == 2


def test_what_is_beside_a_tile_is_not_multiplied(emulator: Emulator) -> None:
    """An infinite element of x is met with one tap alone: with others it would be by positions that there are not."""
    conv = Convolution(1, 4, 4, 4, (7, 7), (5, 5), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0))
    case = Case(OPERATORS[0], conv)
    tensors = operands(conv, case.result)
    tensors["y"] = np.ones_like(tensors["y"])
    tensors["x"][..., -1, -1] = np.inf
    for given in ({"run": 2, "rows": 4}, {"run": 4, "rows": 1}):
        _, program = program_of(case, "depthwise", given)
        for got in emulator.run(program, case.arrays(tensors), case.shape(case.result), ORDERS[:1]):
            finite = np.isfinite(layouts.to_canonical(got, case.axes(case.result)))
            assert not finite[..., 2, 2].any()
            assert finite.sum() == 4 * 8


def test_groups_of_several_channels_are_for_other_rules() -> None:
    several = Convolution(1, 2, 4, 4, (5,), (5,), (3,), (1,), (1,), (1,), (1,))
    multiplied = Convolution(1, 2, 2, 4, (5,), (5,), (3,), (1,), (1,), (1,), (1,))
    for conv in (several, multiplied):
        assert not any(takes("depthwise", Case(operator, conv)) for operator in OPERATORS)
