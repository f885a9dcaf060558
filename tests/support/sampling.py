"""Which of many cases run always, and which only in the full suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


def every(step: int, cases: Sequence[T]) -> list[ParameterSet]:
    """One parameter for each case, named by its text; all but every step-th are marked slow."""
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] if i % step else []) for i, case in enumerate(cases)
    ]
