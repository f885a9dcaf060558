"""What the tests of tuning share: a small layer, logs of their own, a search that takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tvmconvgrad as cg
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records import lookup
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing.merging import merged

OP = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 16, 32)
)
SHAPES = ((2, 12, 12, 16), (2, 12, 12, 32))


@pytest.fixture
def problem() -> Problem:
    """A small weights gradient, as a kernel is built from it."""
    return merged(OP.problem(*SHAPES))


@pytest.fixture
def task(problem: Problem) -> Task:
    """The search for it on one thread."""
    return Task(problem, parse_target(None), 1, "this CPU", ("small/filters",))


@pytest.fixture
def logs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of the user's logs; nothing that was read before is remembered."""
    monkeypatch.setenv("TVMCONVGRAD_TUNING_DIR", str(tmp_path / "logs"))
    monkeypatch.setattr(lookup, "_read", {})
    yield tmp_path / "logs"
