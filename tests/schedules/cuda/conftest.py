"""For the tests of GPU schedules: the emulator, compiled once."""

from __future__ import annotations

import pytest

from tests.support.gpu.emulator import Emulator


@pytest.fixture(scope="module", autouse=True)
def kernels_ahead() -> None:
    """None are built ahead, as they are elsewhere: those are the CPU's, and here nothing is run on it."""


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator.prepare(tmp_path_factory.mktemp("emulator"))
