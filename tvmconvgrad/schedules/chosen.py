"""Makes the program that a search chose: the rule schedules the problem again with the chosen numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import DEFAULT_SPACE, Choice, ChoiceRefused
from tvmconvgrad.schedules.base import Rule, Scheduled
from tvmconvgrad.schedules.default_space import replayed
from tvmconvgrad.spec import Problem


def scheduled_as(problem: Problem, target: Target, schedule: str | None, choice: Choice | None) -> Scheduled:
    """The program of a problem: by a search's choice, by the rule named `schedule`, or by the cheapest rule.

    Raises ValueError for an unknown rule, or ChoiceRefused.
    """
    return schedules.schedule(problem, target, schedule) if choice is None else chosen(problem, target, choice)


def chosen(problem: Problem, target: Target, choice: Choice) -> Scheduled:
    """The program of a choice. Raises ChoiceRefused if it is not, or no longer, the one that was measured."""
    try:
        if choice.rule == DEFAULT_SPACE:
            scheduled = replayed(problem, choice.trace)
        else:
            scheduled = given(problem, _rule(problem, target, choice.rule), dict(choice.decisions))
    except ValueError as reason:
        raise ChoiceRefused(str(reason)) from None
    if str(scheduled) != choice.plan:
        raise ChoiceRefused(f"its numbers now mean {scheduled}, and meant {choice.plan}")
    return scheduled


def given(problem: Problem, rule: Rule, numbers: Mapping[str, int]) -> Scheduled:
    """The program of a rule with these numbers. Raises ValueError also if the rule draws no number of such a name."""
    scheduled = rule.schedule(problem, numbers)
    unknown = sorted(set(numbers) - set(scheduled.candidates))
    if unknown:
        expected = f"expected of {', '.join(scheduled.candidates)}"
        raise ValueError(f"decisions: {rule.name} draws no {', '.join(unknown)}, {expected}")
    return scheduled


def _rule(problem: Problem, target: Target, name: str) -> Rule:
    """The rule with a name. Raises ValueError if it does not take the problem."""
    if name not in schedules.applicable(problem, target):
        raise ValueError(f"rule: {name!r} does not take {problem}")
    return next(rule for rule in schedules.rules(target) if rule.name == name)
