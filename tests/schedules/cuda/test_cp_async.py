"""Whose turn it is to copy a vector to shared memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import Copier, PaddedTile

NOTHING: Any = None


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize(("positions", "block_k", "item"), [(256, 64, 2), (128, 32, 2), (16, 64, 2), (128, 16, 4)])
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_each_vector_has_its_turn_once(
    threads: int, positions: int, block_k: int, item: int, by_position: bool
) -> None:
    tile = PaddedTile(positions, block_k, item, by_position)
    copier = Copier(NOTHING, NOTHING, 0, tile, threads, cached=False)
    total = tile.lines * tile.vectors
    waves = [cast(tuple[int, int], copier._line_of(cast(Any, flat))) for flat in range(total)]
    assert sorted(waves) == [(line, at) for line in range(tile.lines) for at in range(tile.vectors)]
    run = min(tile.vectors, 8)
    for begin in range(0, total, run):  # neighbouring threads copy what lies side by side: a line of the caches
        line, first = waves[begin]
        assert waves[begin : begin + run] == [(line, first + i) for i in range(run)]
    for thread in range(min(threads, total)):
        lines = {line for line, _ in waves[thread::threads]}
        assert len(lines) <= max(tile.lines * run // threads, 1)
