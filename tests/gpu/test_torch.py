"""A PyTorch program on a GPU, whose convolutions are computed by kernels that are built there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import forget_layers
from tvmconvgrad.torch.steps import findings


@pytest.fixture(autouse=True)
def enabled(compiler_for_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our kernels compute every call but those of a test's first run; nothing is kept."""
    monkeypatch.setenv("TVMCONVGRAD_TUNING_DIR", str(tmp_path))
    findings.forget()
    forget_layers()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    cgt.disable()
    findings.forget()


def integers(*shape: int, dtype: Any, last: bool) -> Any:
    """Small ones, whose sums are exact."""
    made = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def results(x: Any, w: Any, **named: Any) -> list[Any]:
    """The output and both gradients."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = torch.nn.functional.conv2d(x, w, **named)
    return [y.detach(), *torch.autograd.grad(y, (x, w), torch.ones_like(y))]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", [1, 16])
def test_results_are_pytorchs(dtype: Any, last: bool, groups: int) -> None:
    x = integers(2, 16, 14, 14, dtype=dtype, last=last)
    w = integers(32, 16 // groups, 3, 3, dtype=dtype, last=last)
    expected = results(x, w, padding=1, stride=2, groups=groups)
    cgt.enable(devices=["cuda"])
    got = results(x, w, padding=1, stride=2, groups=groups)
    rows = cgt.report().rows[-3:]
    assert all(row.by == "tvmconvgrad" and row.device == "cuda:0" for row in rows), cgt.report()
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_the_current_stream_and_a_graph() -> None:
    x, w = (integers(*shape, dtype=torch.float16, last=True) for shape in ((4, 64, 14, 14), (64, 64, 3, 3)))
    expected = torch.conv2d(x, w)
    cgt.enable(devices=["cuda"])
    place = torch.zeros_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy * 1e-3  # until then there are zeros in the input
        place.copy_(x)
        found = torch.conv2d(place, w)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(found, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.conv2d(place, w)
    place.copy_(-x)
    graph.replay()
    assert torch.equal(found, -expected)


def test_turns_are_timed_on_the_gpu() -> None:
    torch.use_deterministic_algorithms(False)
    x = integers(4, 64, 14, 14, dtype=torch.float16, last=True).requires_grad_()
    cgt.enable(devices=["cuda"])
    cgt.warmup(torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=torch.float16), x)
    rows = cgt.report().rows
    assert len(rows) == 3
    assert all(row.ours_ms and row.theirs_ms and row.ours_ms < 100 for row in rows), cgt.report()
