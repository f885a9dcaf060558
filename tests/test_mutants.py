"""The faults that tests/mutants.py puts into the package: each is one still, and names tests that there are."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant, mutants

FAULTS = mutants()


def test_there_are_enough_for_cpus_and_for_gpus() -> None:
    of_gpus = sum("cuda" in mutant.file for mutant in FAULTS)
    assert len(FAULTS) >= 30
    assert min(of_gpus, len(FAULTS) - of_gpus) >= 12
    assert len(MUTANTS.read_text().splitlines()) == len(set(FAULTS))


@pytest.mark.parametrize("mutant", FAULTS, ids=lambda mutant: mutant.breaks)
def test_it_changes_the_program(mutant: Mutant) -> None:
    source = (ROOT / "tvmconvgrad" / mutant.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutant.changed(source))) != ast.dump(ast.parse(source))
    assert all((ROOT / each).is_file() for each in mutant.tests)


def test_a_text_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"te/x\.py: 'old' is there 0 times, expected once"):
        Mutant("te/x.py", "old", "new", "nothing", ()).changed("new")
