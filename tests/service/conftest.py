"""A service whose workers make no kernels, so that they start at once, and do what a test tells them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.processes import OP, SHAPES
from tvmconvgrad.compiler import service
from tvmconvgrad.compiler.service import Order
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.workers.folder import PREFIX


class Acting:
    """The service, what its workers were asked for, and their processes."""

    def __init__(self, folder: Path) -> None:
        self.log, self.temporary = folder / "log", folder / "temporary"
        self.log.mkdir()
        self.temporary.mkdir()

    def order(self, number: int, act: str = "make", choice: Choice | None = None) -> Order:
        """An order of its own for each number."""
        return Order({"number": number, "act": act}, OP.problem(*SHAPES), Target(), None, choice)

    def builds(self, number: int | str = "*") -> int:
        """How many were begun."""
        return len(list(self.log.glob(f"{number}-*")))

    def workers(self) -> list[Any]:
        """Those with a process."""
        return [worker for pool in service._pools.values() for worker in pool._workers if worker.pid]

    def folders(self) -> list[Path]:
        """What there is of temporary files."""
        return list(self.temporary.glob(f"{PREFIX}*"))


@pytest.fixture
def acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Acting]:
    found = Acting(tmp_path)
    monkeypatch.setenv("ACTING_LOG", str(found.log))
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMCONVGRAD_COMPILERS", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(found.temporary))
    monkeypatch.setattr(service, "PROGRAM", "tests.service.acting")
    monkeypatch.setattr(service, "_pools", {})
    yield found
    for pool in service._pools.values():
        pool.close()
    assert not found.folders()
