"""Where Winograd's algorithm is taken: if the target allows it, for what it can compute, with a bounded workspace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution
from tests.support.cases.winograd import CONVOLUTIONS, RULES, TARGET, compiled
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target


def test_it_is_taken_only_where_it_is_allowed_and_expected_to_be_faster() -> None:
    def chosen(problem: Convolution, target: str | None, operator: str = OPERATORS[0]) -> str:
        found: cg.Kernel = replace(Case(operator, problem).call, target=target).compile()
        return found.schedule

    large = Convolution(4, 1, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    pointwise = Convolution(4, 1, 64, 64, (28, 28), (28, 28), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    strided = Convolution(8, 1, 128, 256, (32, 32), (16, 16), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1))
    assert chosen(large, TARGET).startswith("winograd-")
    assert chosen(strided, TARGET, OPERATORS[1]).startswith("winograd-")
    assert not chosen(strided, TARGET).startswith("winograd")
    assert chosen(large, None) == chosen(large, "llvm -mcpu=native -algorithm=direct")
    assert not chosen(large, None).startswith("winograd")
    assert chosen(pointwise, TARGET) == chosen(pointwise, None)


@pytest.mark.parametrize(
    "conv",
    [
        Convolution(1, 2, 32, 32, (8, 8), (8, 8), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
        Convolution(1, 1, 32, 32, (8, 8), (4, 4), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
        Convolution(1, 1, 32, 32, (8, 8), (3, 3), (6, 6), (1, 1), (1, 1), (0, 0), (0, 0)),
        Convolution(1, 1, 17, 32, (8, 8), (4, 4), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    ],
    ids=["groups", "strides", "six taps", "phases of cut vectors"],
)
def test_what_it_does_not_take_is_refused_where_it_is_forced(conv: Convolution) -> None:
    for operator in OPERATORS:
        with pytest.raises(ValueError, match=r"schedule: 'winograd-.*' does not take .*, expected one of"):
            compiled(Case(operator, conv))


@pytest.mark.parametrize(("c", "o", "shape"), [(32, 32, (16, 32, 32)), (64, 128, (8, 16, 16))])
def test_the_workspace_is_no_larger_than_the_tensors(c: int, o: int, shape: tuple[int, ...]) -> None:
    """Along the first axis, which has no tiles, output phases begin at two positions."""
    halves = tuple(size // 2 for size in shape)
    conv = Convolution(1, 1, c, o, shape, halves, (4,) * 3, (2,) * 3, (1,) * 3, (1,) * 3, (1,) * 3)
    problem = Case(OPERATORS[1], conv).call.problem()
    built = llvm.build(problem, parse_target("llvm -mcpu=x86-64-v4 -algorithm=auto"), RULES["x"][0])
    assert 0 < built.workspace_bytes <= problem.tensor_bytes


def test_without_leave_it_is_no_schedule() -> None:
    case = Case(OPERATORS[0], CONVOLUTIONS[0])
    with pytest.raises(ValueError, match="schedule: 'winograd-weights' is unknown for"):
        replace(case.call, schedule="winograd-weights").compile()


def test_elements_between_two_taps_are_left_to_others() -> None:
    """Along the second axis the taps meet elements 0 and 2: element 1 is zero, whatever the position holds."""
    conv = Convolution(1, 1, 1, 3, (3, 3), (7, 1), (3, 2), (1, 1), (1, 2), (3, 0), (3, 0))
    case = Case("ConvolutionBackpropData", conv, output_padding=(0, 0))
    tensors = {name: np.full(conv.shapes[name], np.inf, np.float32) for name in "yw"}
    call = case.call
    operator = getattr(cg, call.operator)(**call.attributes)
    result = operator(*case.arrays(tensors), target="llvm -mcpu=native -algorithm=auto")
    assert_same(result[:, :, 1], np.zeros_like(result[:, :, 1]))
    found = operator.compile(*call.shapes, target="llvm -mcpu=native -algorithm=auto")
    assert "winograd" not in found.schedule
