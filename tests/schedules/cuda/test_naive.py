"""A thread for each element, on an emulated GPU: exact on integers."""

from __future__ import annotations

import pytest

from tests.support.cases.by_rule import cases
from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import covering
from tests.support.gpu.cases import check, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator

pytestmark = needs_emulator


@pytest.mark.parametrize("case", covering(cases()))
def test_results_are_exact(emulator: Emulator, case: Case) -> None:
    check(emulator, case, "naive" if takes("naive", case) else "zero")


def test_what_no_other_rule_takes_falls_to_it(emulator: Emulator) -> None:
    """A gradient whose sum goes over the elements of y, since they are fewer than taps, is no matrix product."""
    whole = Case(
        "ConvolutionBackpropData", Convolution(2, 1, 8, 8, (5, 5), (1, 1), (5, 5), (1, 1), (1, 1), (0, 0), (0, 0))
    )
    assert not takes("gemm", whole)
    assert program_of(whole)[0].rule == "naive"
    check(emulator, whole, "naive")
