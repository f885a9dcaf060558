"""The lanes of cases: what is said to be covered is."""

from __future__ import annotations

from itertools import combinations, product

from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering, in_turn, kinds_of


def lanes(size: int, **how: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Of all ways to choose one of two for each of so many things: the quick lane's, and those of it or the second."""
    found = covering(list(product(range(2), repeat=size)), kinds=enumerate, **how)
    names = [{mark.name for mark in each.marks} for each in found]
    values = [each.values[0] for each in found]
    quick = [value for value, marks in zip(values, names) if not marks]
    return quick, [value for value, marks in zip(values, names) if "nightly" not in marks]  # type: ignore[return-value]


def test_each_pair_and_each_triple_is_met() -> None:
    quick, second = lanes(7, quick=2, second=3)
    for strength, chosen in ((2, quick), (3, second)):
        for places in combinations(range(7), strength):
            assert {tuple(each[i] for i in places) for each in chosen} == set(product(range(2), repeat=strength))
    assert len(quick) < 12 < len(second) < 30  # of 128


def test_values_in_turn_meet_each_pair_of_the_other_axes() -> None:
    found = in_turn(3, "abcd", range(3), "xyz")
    assert len(found) == 36
    quick = [each.values for each in found if not each.marks]
    assert len(quick) == 12
    for one, other in combinations(range(3), 2):
        pairs = {(each.values[one], each.values[other]) for each in found}
        assert {(values[one], values[other]) for values in quick} == pairs


def test_the_second_lane_meets_each_pair_so_many_times() -> None:
    found = in_turn(3, "abcd", range(3), "xyz", second=2)
    second = [each.values for each in found if not {mark.name for mark in each.marks} & {"nightly"}]
    assert len(second) == 24
    for pair in product("abcd", "xyz"):
        assert sum((values[0], values[2]) == pair for values in second) == 2


def test_a_lane_may_have_none() -> None:
    quick, second = lanes(7, quick=0, second=2)
    assert not quick
    assert 4 <= len(second) < 12


def test_random_cases_are_far_more_than_what_covers_them() -> None:
    cases = random_cases(seed=1, count=500)
    marks = [{mark.name for mark in each.marks} for each in covering(cases, quick=2)]
    assert 15 < marks.count(set()) < 50
    assert marks.count({"nightly"}) > 200
    met = [set(combinations(kinds_of(case), 2)) for case in cases]
    quick = [pairs for pairs, each in zip(met, marks) if not each]
    assert set().union(*met) == set().union(*quick)
