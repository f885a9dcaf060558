"""Which of many cases run in which lane: the quick one, the second (`slow`), or the one that is left (`nightly`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet

from tests.support.cases.case import Case

T = TypeVar("T")
Kinds = Callable[[T], Iterable[Hashable]]


def every(step: int, cases: Sequence[T], second: int | None = None) -> list[ParameterSet]:
    """One parameter for each case, named by its text, in lanes by its place modulo `step`, as in `in_turn`."""
    lanes = _lanes(step, second)
    return [pytest.param(case, id=str(case), marks=lanes[i % step]) for i, case in enumerate(cases)]


def in_turn(step: int, *axes: Sequence[Any], second: int | None = None) -> list[ParameterSet]:
    """All combinations of the axes' values, in lanes by what the values' places on the axes add up to, modulo `step`:
    0 is the quick lane, what is below `second` the second one, and what is left the nightly one. Without `second` none
    is left. If one axis has `step` values, the quick lane meets each combination of the other axes' values once, and
    the first two lanes `second` times."""
    assert step < sum(map(len, axes)) - len(axes) + 1, "the quick lane would have one case"
    lanes, found = _lanes(step, second), []
    for chosen in product(*map(enumerate, axes)):
        places, values = zip(*chosen, strict=True)
        found.append(pytest.param(*values, id="-".join(map(str, values)), marks=lanes[sum(places) % step]))
    return found


def _lanes(step: int, second: int | None) -> list[list[pytest.MarkDecorator]]:
    """The marks of places modulo `step`."""
    taken = step if second is None else second
    return [[], *[[pytest.mark.slow]] * (taken - 1), *[[pytest.mark.nightly]] * (step - taken)]


def kinds_of(case: Case) -> list[Hashable]:
    """What a case is one of: operator, type, layouts, rank, groups, and whether it has strides, dilations and pads."""
    conv = case.convolution
    depthwise = conv.groups > 1 and conv.groups == conv.c
    return [
        case.operator,
        case.dtype,
        case.data_format,
        case.filter_format,
        ("rank", conv.rank),
        ("groups", "depthwise" if depthwise else conv.groups > 1),
        ("strides", max(conv.strides) > 1),
        ("dilations", max(conv.dilations) > 1),
        ("pads", any(conv.pads_begin) or any(conv.pads_end)),
    ]


def covering(
    cases: Sequence[T],
    kinds: Kinds[T] = kinds_of,
    *,
    quick: int = 1,
    second: int = 2,
    each: Kinds[T] = lambda _: (),
    name: Callable[[T], str] = str,
) -> list[ParameterSet]:
    """One parameter for each case, with its name, marked by its lane.

    `quick` and `second` are how many kinds that some case has are met together in a lane: 2 for each pair, 0 for no
    case at all. The second lane also has each of `each` once.
    """
    first = cover(cases, lambda case: combinations(kinds(case), quick)) if quick else set()
    more = cover(cases, lambda case: [*combinations(kinds(case), second), *each(case)], first) if second else set()
    lanes = [[] if i in first else [pytest.mark.slow if i in more else pytest.mark.nightly] for i in range(len(cases))]
    return [pytest.param(case, id=name(case), marks=marks) for case, marks in zip(cases, lanes, strict=True)]


def cover(cases: Sequence[T], goals: Kinds[T], chosen: Iterable[int] = ()) -> set[int]:
    """Numbers of cases, `chosen` among them, that together have all goals: each time the one that adds the most."""
    of = [frozenset(goals(case)) for case in cases]
    found = set(chosen)
    left = frozenset().union(*of) - frozenset().union(*(of[i] for i in found))
    while left:
        best = max(range(len(of)), key=lambda i: len(of[i] & left))
        found.add(best)
        left -= of[best]
    return found
