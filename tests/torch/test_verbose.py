"""TVMCONVGRAD_VERBOSE=1 prints the calls by PyTorch, too."""

from __future__ import annotations

import pytest
import torch

import tvmconvgrad.torch as cgt
from tvmconvgrad.common import verbose


def test_each_call_prints_a_line(
    at_once: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(verbose.VARIABLE, "1")
    verbose.forget()
    try:
        with cgt.enabled():
            w = torch.randn(5, 4, 3, 3, requires_grad=True)
            torch.conv2d(torch.randn(2, 4, 6, 6), w).sum().backward()
    finally:
        monkeypatch.undo()
        verbose.forget()
    calls = [line.split(",")[5] for line in capfd.readouterr().out.splitlines() if ",exec," in line]
    assert calls == ["ConvTransposeBackpropData", "ConvolutionBackpropFilters"]
