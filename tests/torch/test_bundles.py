"""Bundles in use serve PyTorch, too, where nothing may be built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tvmconvgrad as cg
import tvmconvgrad.torch as cgt
from tests.torch.support import called
from tvmconvgrad.bundles import registry
from tvmconvgrad.layers import Layer


def test_gradients_are_taken_from_a_bundle(at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(name="layer", batch=2, channels=4, filters=5, input_size=(6, 7), kernel=(3, 3))
    bundle = cg.build([layer], tmp_path / "bundle", data_format="NCX", filter_format="OIX")
    x = torch.randint(-3, 4, (2, 4, 6, 7)).float().requires_grad_()
    w = torch.randint(-3, 4, (5, 4, 3, 3)).float().requires_grad_()
    expected = torch.autograd.grad(torch.conv2d(x, w).square().sum(), (x, w))
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "never")
    cg.use(bundle)
    try:
        with cgt.enabled():
            got = torch.autograd.grad(torch.conv2d(x, w).square().sum(), (x, w))
    finally:
        registry.forget()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    forward, data, weights = called()
    assert "MissingKernel" in forward.reason
    for step in (data, weights):
        assert step.build is not None
        assert step.build.kernel is not None
        assert not step.reason


def test_a_bundle_without_the_bias(at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(name="layer", batch=2, channels=4, filters=5, input_size=(6, 7), kernel=(3, 3))
    bundle = cg.build([layer], tmp_path / "bundle", data_format="NCX", filter_format="OIX", only="forward")
    x, w = torch.randint(-3, 4, (2, 4, 6, 7)).float(), torch.randint(-3, 4, (5, 4, 3, 3)).float()
    bias = torch.arange(5.0)
    expected = torch.conv2d(x, w, bias)
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "never")
    cg.use(bundle)
    try:
        with cgt.enabled():
            got = torch.conv2d(x, w, bias)
    finally:
        registry.forget()
    assert torch.equal(got, expected)
    (step,) = called()
    assert not step.reason
    assert step.build is not None
    assert step.build.kernel is not None
    assert not step.build.kernel.problem.epilogue.bias
