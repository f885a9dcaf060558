"""For the tests of GPU schedules: the emulator, compiled once."""

from __future__ import annotations

import pytest

from tests.support.gpu import Emulator


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator.prepare(tmp_path_factory.mktemp("emulator"))
