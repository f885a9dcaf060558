"""For all tests of the PyTorch front end: nothing is enabled before or after one, and kernels are built at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

from tests.torch.support import forget_layers
from tvmconvgrad.torch import disable
from tvmconvgrad.torch.steps import findings
from tvmconvgrad.torch.steps.building import Build


@pytest.fixture(autouse=True)
def nothing_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TVMCONVGRAD_TUNING_DIR", str(tmp_path / "tuning"))
    findings.forget()
    Build.pending.clear()  # what an earlier test has left unfinished would let no call be timed
    yield
    disable()
    forget_layers()
    Build.pending.clear()
    findings.forget()


@pytest.fixture
def at_once() -> Iterator[None]:
    """Deterministic programs wait for a kernel that is not there yet, and always use it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
