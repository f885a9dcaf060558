"""Filters that move along the first axes alone, as of 7x1: a rule takes them with rows that are joined to one."""

from __future__ import annotations

import pytest

from tests.support.building.scheduled import computed
from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.cpu.amx import AMX
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import forms, reduced

ECG = Convolution(2, 1, 16, 32, (40, 3), (40, 3), (5, 1), (1, 1), (1, 1), (2, 0), (2, 0))
VIDEO = Convolution(2, 2, 18, 20, (6, 3, 5), (3, 3, 5), (3, 1, 1), (1, 1, 1), (2, 1, 1), (1, 0, 0), (0, 0, 0))
HIGH = Convolution(1, 1, 48, 64, (19, 17), (19, 17), (7, 1), (1, 1), (1, 1), (3, 0), (3, 0))


def problem(conv: Convolution, operator: str, data_format: str = "NXC", dtype: str = "f32") -> Problem:
    return reduced(Case(operator, conv, data_format, "XIO", dtype).call.problem())


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("conv", [ECG, VIDEO, HIGH])
def test_such_a_problem_has_a_form_with_one_axis(conv: Convolution, operator: str) -> None:
    _, longer = forms(problem(conv, operator))
    assert (longer.geometry.rank, longer.geometry.k) == (1, (max(conv.k),))


def test_other_problems_have_one_form() -> None:
    """Taps along the last axis; strides along the first; positions that are cropped, of which there are fewer."""
    along = Convolution(2, 1, 16, 32, (6, 40), (6, 40), (1, 5), (1, 1), (1, 1), (0, 2), (0, 2))
    strided = Convolution(2, 1, 16, 32, (40, 3), (20, 3), (4, 1), (2, 1), (1, 1), (1, 0), (1, 0))
    cropped = Convolution(2, 1, 16, 32, (4, 3), (12, 3), (3, 1), (1, 1), (1, 1), (5, 0), (5, 0))
    for conv in (along, strided, cropped):
        assert len(forms(problem(conv, "ConvolutionBackpropData"))) == 1, conv


@pytest.mark.parametrize("data_format", layouts.DATA_FORMATS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_tile_registers_take_the_form_with_one_axis(operator: str, data_format: str) -> None:
    """A cache block has images and positions, the sums of a data gradient images, groups, positions and channels."""
    found = schedules.schedule(problem(ECG, operator, data_format, "bf16"), parse_target(AMX))
    assert "tiles" in found.rule
    if "cache_block" in found.plan:
        assert len(found.plan["cache_block"]) == 2
    else:
        assert len(found.expression.sum_results[0].shape) == 4


@pytest.mark.parametrize("target", ["llvm -mcpu=x86-64-v3", "llvm -mcpu=x86-64-v4"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("conv", [ECG, VIDEO])
def test_results_are_exact(conv: Convolution, operator: str, target: str) -> None:
    """By the cheapest rule, in f32; tile registers: operators/algorithms/test_tile_registers.py."""
    for data_format in layouts.DATA_FORMATS:
        case = Case(operator, conv, data_format, "XIO")
        tensors = operands(conv, case.result)
        made = schedules.schedule(reduced(case.call.problem()), parse_target(target))
        assert_same(computed(made, case, tensors, parse_target(None)), reference.gradient(conv, case.result, tensors))
