"""The rules that turn a tensor expression into a fast program for a target. Importing this imports TVM.

Where each rule is, by the name that `inspect` and `schedule=` have for it. Each file begins with the loop nest, why it
is fast, and what it does not do:

    weights-o, weights-c, weights-groups, weights-tiles               cpu/weights/rule.py
    weights-rows                                                      cpu/weights_rows/rule.py
    data-channels, data-groups, data-positions, data-k,               cpu/data/rule.py
    data-tiles, data-tiles-positions
    winograd-weights, winograd-channels, winograd-data                cpu/winograd/{weights,channels,data}/rule.py
    gemm, depthwise, naive                                            cuda/{gemm,depthwise,naive}/rule.py
    zero                                                              zero.py

decisions.py has the numbers that tuning may change, expressions/ what the rules schedule, transforms/ rewrites that
they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.schedules.base import Rule, Scheduled
from tvmconvgrad.schedules.zero import ZERO
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import nearest, show

__all__ = ["VERSION", "Rule", "Scheduled", "applicable", "names", "rules", "schedule"]


def rules(target: Target) -> Sequence[Rule]:
    """All rules for a target."""
    found: Sequence[Rule] = target.backend.get("rules")(target)
    return found


def names(target: Target) -> list[str]:
    """The names that `schedule` takes."""
    return [rule.name for rule in rules(target)]


def applicable(problem: Problem, target: Target) -> list[str]:
    """The names of the rules that take a problem, cheapest first; equally cheap ones in the order of `rules`."""
    able = (rule for rule in rules(target) if (rule.name == ZERO) == problem.is_zero)
    costs = ((rule.cost(problem), rule.name) for rule in able)
    usable = [(cost, name) for cost, name in costs if cost is not None]
    return [name for _, name in sorted(usable, key=lambda pair: pair[0])]


def schedule(
    problem: Problem, target: Target, name: str | None = None, given: Mapping[str, int] | None = None
) -> Scheduled:
    """The scheduled program of a problem: by the cheapest rule that takes it, or by the one called `name`.

    Numbers in `given`, by the names in `Scheduled.candidates`, replace the rule's own; names that the rule
    does not draw are ignored (`chosen.given` refuses them). Raises ValueError if no rule has that name, if it does not
    take the problem, or if a number is no candidate.
    """
    if name is not None and name not in names(target):
        known = names(target)
        expected = f"expected one of {', '.join(known)}"
        raise ValueError(f"schedule: {show(name)} is unknown for {target}{nearest(name, known)}, {expected}")
    usable = applicable(problem, target)
    chosen = usable[0] if name is None else name
    if chosen not in usable:
        raise ValueError(f"schedule: {chosen!r} does not take {problem}, expected one of {', '.join(usable)}")
    return next(rule for rule in rules(target) if rule.name == chosen).schedule(problem, given)
