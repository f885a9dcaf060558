"""For all tests of JAX's front end: nothing is enabled before or after one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("jax", reason="JAX is not installed (pip install jax)")

from tvmconvgrad.jax import disable
from tvmconvgrad.jax.override import override


@pytest.fixture(autouse=True)
def nothing_enabled() -> Iterator[None]:
    yield
    disable()
    override.lowered = {}
