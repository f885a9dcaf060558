"""Literal numbers from other projects' tests, in the layouts that they were written in and in others."""

from __future__ import annotations

import pytest

import tvmconvgrad as cg
from tests.support.cases.sampling import every
from tests.support.oracles.data import needs
from tests.support.oracles.vectors import Vector, rotated, vectors

VECTORS = vectors()


def run(vector: Vector) -> None:
    operator = getattr(cg, vector.operator)(**vector.attributes)
    vector.check(operator(*vector.inputs()))


@needs("vectors")
def test_all_files_are_there() -> None:
    assert len(VECTORS) >= 254
    assert sum(bool(vector.case.get("exact")) for vector in VECTORS) >= 196


@needs("vectors")
@pytest.mark.parametrize("vector", every(12, VECTORS))
def test_as_written(vector: Vector) -> None:
    run(vector)


@needs("vectors")
@pytest.mark.parametrize("vector", every(24, rotated(VECTORS)))
def test_in_another_layout(vector: Vector) -> None:
    run(vector)
