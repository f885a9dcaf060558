"""oneDNN's own operators of the same names, on random attributes: integers, so that both must give the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import operands
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering
from tests.support.oracles import onednn

CASES = random_cases(seed=20250, count=520, beyond=False, dtype="f32")  # oneDNN has f16 on few CPUs


@pytest.fixture(scope="module")
def judge() -> Iterator[onednn.Judge]:
    with onednn.judge() as found:
        yield found


@pytest.mark.parametrize("case", covering(CASES))
def test_same_as_onednn(judge: onednn.Judge, case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    assert_same(case.run(tensors), judge.gradient(case, tensors))
