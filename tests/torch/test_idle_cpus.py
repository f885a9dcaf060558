"""Builds that nobody waits for take the CPUs that the program leaves idle, and others all."""

from __future__ import annotations

from typing import Any

import pytest

import tvmconvgrad as cg
from tvmconvgrad.compiler import service
from tvmconvgrad.torch.steps import building

OP = cg.ConvolutionBackpropFilters(strides=[1], dilations=[1], pads_begin=[0], pads_end=[0], filter_shape=[3, 5, 7])
PROBLEM = OP.problem((1, 9, 5), (1, 7, 7))


@pytest.mark.parametrize(("idle", "most"), [(3, 3), (1, 1), (0, None)])
def test_as_many_builds_as_idle_cpus(monkeypatch: pytest.MonkeyPatch, idle: int, most: int | None) -> None:
    asked: list[int | None] = []

    def begin(order: Any, callback: Any, niceness: int, at_once: int | None) -> None:
        asked.append(at_once)

    monkeypatch.setattr(building, "idle_cpus", lambda: idle)
    monkeypatch.setattr(service, "find", lambda order: None)
    monkeypatch.setattr(service, "begin", begin)
    build = building.Build(PROBLEM, None)
    try:
        build.ask()
        build.ask()  # no second time
        assert asked == [most]
        build.ask(waits=True)
        assert asked == [most, None]
    finally:
        build.pending.discard(build)
