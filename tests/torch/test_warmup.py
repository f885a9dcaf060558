"""`warmup` builds and measures everything, and leaves the model as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import called
from tvmconvgrad.torch.state import SIZES_AT_ONCE

nn = torch.nn


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(8, 4, 1)
    )


def test_all_is_built_and_decided_and_nothing_else_changes() -> None:
    model, x = net(), torch.randn(2, 3, 8, 8)
    model(x).sum().backward()
    before, grads = copy.deepcopy(model.state_dict()), [value.grad.clone() for value in model.parameters()]
    random = torch.get_rng_state()
    with cgt.enabled():
        report = cgt.warmup(model, x, progress=False)
    assert [row.part for row in report.rows].count("weights gradient") == 2
    assert all(step.comparison.is_ours is not None for step in called())
    assert all(row.ours_ms and row.theirs_ms for row in report.rows)
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_deterministic_programs_have_all_built_at_once(at_once: None) -> None:
    with cgt.enabled():
        report = cgt.warmup(net(), torch.randn(2, 3, 8, 8), progress=False)
        assert torch.are_deterministic_algorithms_enabled()
    assert report.rows
    assert all(step.build is not None and step.build.kernel is not None for step in called())


def test_inference_alone() -> None:
    with cgt.enabled():
        report = cgt.warmup(net().eval(), torch.randn(2, 3, 8, 8), backward=False, progress=False)
    assert {row.part for row in report.rows} == {"forward"}


def test_nothing_enabled() -> None:
    with pytest.raises(RuntimeError, match="nothing is enabled"):
        cgt.warmup(net(), torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    "model",
    [torch.relu, torch.jit.script(nn.ReLU()), nn.DataParallel(nn.ReLU())],
    ids=["function", "scripted", "DataParallel"],
)
def test_what_cannot_be_warmed_up(model: Any) -> None:
    with cgt.enabled(), pytest.raises(TypeError, match=r"model: got .*, expected a torch\.nn\.Module, and none"):
        cgt.warmup(model, torch.randn(2, 3, 8, 8))


class Heads(nn.Module):  # type: ignore[misc]
    """One filter for images of many sizes, and a result that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: list[torch.Tensor]) -> dict[str, Any]:
        return {"heads": [self.conv(image) for image in images], "nothing": None}


def test_all_sizes_of_a_layer_are_built() -> None:
    sizes = range(5, 6 + SIZES_AT_ONCE)
    with cgt.enabled(), torch.no_grad():
        for _ in range(2):  # the second call asks for its kernel
            torch.conv2d(torch.randn(1, 3, 40, 40), torch.randn(4, 3, 3, 3))
        cgt.warmup(Heads(), [torch.randn(1, 3, size, size) for size in sizes], backward=False, progress=False)
    assert len(called()) == 1 + len(sizes)
    assert all(step.build is not None and step.build.kernel is not None for step in called())


def test_inputs_that_require_a_gradient_have_kernels_for_it() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with cgt.enabled():
        report = cgt.warmup(nn.Conv2d(3, 4, 3), x, progress=False)
    assert [row.part for row in report.rows] == ["forward", "data gradient", "weights gradient"]
    assert x.grad is None
