"""Builds in forked children: what a parent waits for, a child has to ask for anew."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import called
from tvmconvgrad.futures import ForkedMeanwhile
from tvmconvgrad.torch import building

X, W = torch.randint(-3, 4, (2, 4, 6, 6)).float(), torch.randint(-3, 4, (5, 4, 3, 3)).float()


def test_a_deterministic_child_waits_for_its_own_build(at_once: None, monkeypatch: Any) -> None:
    """All its calls are computed by our kernel, the first one, too."""
    expected = torch.conv2d(X, W)
    ask = building.in_background

    def forked(*arguments: Any) -> Any:
        monkeypatch.setattr(building, "in_background", ask)
        future: Future[Any] = Future()
        future.set_exception(ForkedMeanwhile("this process was forked"))
        return future

    monkeypatch.setattr(building, "in_background", forked)
    with cgt.enabled():
        assert torch.equal(torch.conv2d(X, W), expected)
    (step,) = called()
    assert (step._has_run, step.reason) == (True, "")
