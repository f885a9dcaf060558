"""Every rule of schedules, forced on all that it takes: the choice of a rule changes speed, never the result."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support.cases import layouts
from tests.support.cases.by_rule import cases, rules_for
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import operands
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering
from tests.support.oracles import reference


@cache
def all_rules() -> set[str]:
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    return set(schedules.names(parse_target(None)))


def force(case: Case, rule: str) -> None:
    call = case.call
    kernel = type(call)(**{**vars(call), "schedule": rule}).compile()
    assert kernel.schedule.startswith(rule)
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors)
    got = kernel(*case.arrays(tensors))
    want = expected.astype(got.dtype)
    assert_same(layouts.to_canonical(got, case.axes(case.result)), want)


def test_each_rule_is_forced_below() -> None:
    assert {rule for case in cases() for rule in rules_for(case)} == all_rules()


@pytest.mark.parametrize("case", covering(cases(), each=lambda case: [case.convolution]))
def test_every_rule_gives_the_same(case: Case) -> None:
    rules = rules_for(case)
    assert rules
    for rule in rules:
        force(case, rule)


@pytest.mark.parametrize("case", covering(random_cases(seed=5, count=80), quick=0))
def test_every_rule_on_random_attributes(case: Case) -> None:
    rules = rules_for(case)
    assert rules
    for rule in rules[1:] or rules:  # the first is what every other test runs
        force(case, rule)


def test_an_unknown_rule_is_an_error_that_lists_them() -> None:
    case = cases()[0]
    with pytest.raises(ValueError, match="schedule: 'nothing'") as error:
        force(case, "nothing")
    assert all(rule in str(error.value) for rule in all_rules())
