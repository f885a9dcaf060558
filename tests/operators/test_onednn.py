"""oneDNN's own operators of the same names, on random attributes: integers, so that both must give the same bits."""

from __future__ import annotations

import pytest

from tests.support import onednn
from tests.support.case import Case, assert_same
from tests.support.convolution import operands
from tests.support.random_cases import random_cases
from tests.support.sampling import every

CASES = random_cases(seed=20250, count=520, beyond=False)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    onednn.oracle()


@pytest.mark.parametrize("case", every(25, CASES))
def test_same_as_onednn(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    assert_same(case.run(tensors), onednn.gradient(case, tensors))
