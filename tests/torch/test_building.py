"""Builds in forked children: what a parent waits for, a child has to ask for anew."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import called
from tvmconvgrad.futures import ForkedMeanwhile
from tvmconvgrad.torch.state import State
from tvmconvgrad.torch.steps import building

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


def test_a_child_that_is_forked_while_a_thread_enables(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds no lock that a thread has taken which is not there: a fork waits until the thread is through."""
    inside, follow = threading.Event(), State._follow

    def slowly(state: State) -> None:
        inside.set()
        time.sleep(0.5)
        follow(state)

    monkeypatch.setattr(State, "_follow", slowly)
    thread = threading.Thread(target=cgt.enable)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends a child that waits for ever
        cgt.disable()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


def test_a_failed_build_leaves_later_calls_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the shortest way."""
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("no compiler"))
    monkeypatch.setattr(building, "in_background", lambda *_: failed)
    with cgt.enabled(), torch.no_grad():
        for _ in range(2):
            torch.conv2d(X, W)
    (step,) = called()
    assert (step.uses_pytorch(), step.calls, step.reason) == (True, 2, "RuntimeError: no compiler")
