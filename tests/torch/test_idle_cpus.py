"""Builds that nobody waits for take the CPUs that the program leaves idle, and others all."""

from __future__ import annotations

import pytest

from tvmconvgrad.torch.steps import building


@pytest.mark.parametrize(("idle", "most"), [(3, 3), (1, 1), (0, None)])
def test_as_many_builds_as_idle_cpus(monkeypatch: pytest.MonkeyPatch, idle: int, most: int | None) -> None:
    monkeypatch.setattr(building, "idle_cpus", lambda: idle)
    assert building._at_once() == most
    with building.waiting_for_builds(), building.waiting_for_builds():
        assert building._at_once() is None
    assert building._at_once() == most
