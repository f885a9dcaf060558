"""Which elements of a result meet nothing, by trying them all."""

from __future__ import annotations

from random import Random

from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.te.zeros import Reads


def test_gaps_and_their_conditions_are_those_that_trying_finds() -> None:
    random, analyzer = Random(0), Analyzer()
    kinds = set()
    for _ in range(2000):
        begin, numbers = random.randint(-3, 3), (random.randint(1, most) for most in (4, 12, 9, 4, 6))
        axis = Reads(range(begin, begin + random.randint(1, 9)), *numbers)
        meets = [
            any(0 <= i * axis.step - axis.pad + j * axis.inner_step < axis.size for j in range(axis.count))
            for i in axis.elements
        ]
        assert axis.has_gaps == (not all(meets))
        conditions = [tirx.all(True, *axis.conditions(tirx.IntImm("int64", i))) for i in axis.elements]
        assert [bool(analyzer.simplify(condition)) for condition in conditions] == meets
        kinds.add((meets[0], all(meets), meets[-1]))
    assert len(kinds) == 5
