"""What `bench` takes for a right result of our own: the exact sums, or, by tiles, what is nearest to them."""

from __future__ import annotations

import numpy as np
import pytest

from tvmconvgrad.bench.tensors import WrongResult, check_ours

EXACT = np.array([3.0, -5.0, 1000.0])


def test_by_tiles_the_nearest_integer_counts() -> None:
    close = (EXACT + 0.01).astype(np.float32)
    check_ours("ours", close, EXACT, "f32", by_tiles=True)
    with pytest.raises(WrongResult, match="3 of 3 elements are wrong"):
        check_ours("ours", close, EXACT, "f32")
    with pytest.raises(WrongResult, match="3 of 3 elements are wrong"):
        check_ours("ours", close + np.float32(0.6), EXACT, "f32", by_tiles=True)


def test_by_tiles_bf16_may_be_two_units_off() -> None:
    check_ours("ours", EXACT + 10.0, EXACT, "bf16", by_tiles=True)
    with pytest.raises(WrongResult, match="units of bf16's precision"):
        check_ours("ours", EXACT + 30.0, EXACT, "bf16", by_tiles=True)
