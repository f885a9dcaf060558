"""Times on a GPU, by its own clock. Implementations run in turn, round by round, from a cold or a warm L2 cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from tvmconvgrad.bench.peers.pytorch import DTYPES
from tvmconvgrad.bench.workers.session import in_turn
from tvmconvgrad.machines.targets import TF32

Work = Callable[[], object]
_FLUSHED_BYTES = 256 << 20  # several times a GPU's L2 cache
_CALLS = 3  # of one implementation in a round, of which the median counts
_WARM_UP = 3
_SIDE = 8192


class Clock:
    """Seconds of calls on a device: between two of CUDA's events, or by the host's clock on a CPU."""

    def __init__(self, device: str, flushed: bool) -> None:
        self._on_gpu = torch.device(device).type == "cuda"
        size = _FLUSHED_BYTES if flushed and self._on_gpu else 1
        self._memory = torch.empty(size, dtype=torch.int8, device=device)

    def seconds(self, work: Work) -> float:
        """Of one call, which begins when all before has ended. The cache is overwritten before, if it is to be cold:
        that takes longer than it takes the host to launch the call, whose own time is so left out."""
        self._memory.zero_()
        if not self._on_gpu:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        new_event: Any = torch.cuda.Event
        start, end = new_event(enable_timing=True), new_event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def time_all(works: Mapping[str, Work], clock: Clock, rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in each round, for each implementation; who begins a round changes from one to the next."""
    for work in works.values():
        for _ in range(_WARM_UP):
            clock.seconds(work)
    found: dict[str, list[float]] = {label: [] for label in works}
    for label in in_turn(list(works), rounds):
        found[label].append(median(clock.seconds(works[label]) for _ in range(_CALLS)))
    return found


def matrix_peak(multiplied: str, device: str, clock: Clock, side: int = _SIDE) -> float:
    """GFLOP/s of a large product of matrices, of a type or "tf32": what a gradient's rate is a share of."""
    torch.backends.cuda.matmul.allow_tf32 = multiplied == TF32
    dtype = torch.float32 if multiplied == TF32 else DTYPES[multiplied]
    one, two = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    seconds = time_all({"product": lambda: one @ two}, clock, rounds=5)["product"]
    return 2 * side**3 / median(seconds) / 1e9
