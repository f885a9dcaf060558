"""The memory in which XLA computes has huge pages once a kernel has written a large result."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from tests.runtime.layers import program

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import resource
import jax, jax.numpy as jnp
import tvmconvgrad.jax as cgj
def step(x, w):
    return jax.lax.conv(jnp.tanh(jax.lax.conv(x, w, (1, 1), "SAME")), w.transpose(1, 0, 2, 3), (1, 1), "SAME")
x, w = jnp.ones((16, 1, 256, 256)), jnp.ones((16, 1, 1, 1))
with cgj.enabled():
    compiled = jax.jit(step).lower(x, w).compile()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(compiled(x, w))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _release() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found[1]), int(found[2])) if found else (0, 0)


@pytest.mark.skipif(not POLICY.is_file() or "[never]" in POLICY.read_text(), reason="nobody gets huge pages here")
@pytest.mark.skipif(_release() < (6, 11), reason="since 6.11 Linux tells where a mapping ends")
def test_all_intermediate_arrays() -> None:
    """Two arrays of 64 MiB, of which XLA writes one: 32,768 pages of 4 KiB, or 64 of 2 MiB."""
    assert int(program(FAULTS, prelude="")) < 3000
