"""A worker that runs built libraries: python -m tvmconvgrad.tuning.workers.measure_worker. It loads no compiler.

    {"do": "prepare", "problem": ..., "threads": n, "library": path}            inputs, and the result of the default
    {"do": "measure", "library": path, "limit": seconds}                        check, then seconds of several runs
    {"do": "compare", "libraries": [path, path], "rounds": n}                   seconds of both, run in turn, n times

Inputs are small integers, whose sums are exact in whatever order: a candidate's result must equal the default's. Half
of the runs are on tensors that the caches may hold, half on others: in a program there are both, and what a kernel does
not fetch ahead, or reads again and again, takes longer from memory.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.tensors import aligned
from tvmconvgrad.bench.workers.session import in_turn, loops
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.machines.tile_permission import may_use_tiles
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.native import load_function
from tvmconvgrad.runtime.threads import set_num_threads
from tvmconvgrad.spec import Problem
from tvmconvgrad.tuning.search.inputs import Array, WrongResult, make_inputs
from tvmconvgrad.workers.serving import serve

Tensors = tuple[Array, ...]
"""Both inputs and the result."""

_ENOUGH = 0.05  # seconds that a candidate is measured for
_ROUNDS = (2, 10)  # at least and at most
_FAR = 64 << 20  # bytes of tensors that kernels use before they use the same ones again: more than caches hold
_MOST_COPIES = 4096  # a call with smaller tensors takes no longer


class Measuring:
    """One problem at a time."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make inputs and compute what is right; candidates are then compared with that."""
        self._problem = problem = Problem.from_dict(request["problem"])
        threads = request["threads"]
        if threads < len(self._cpus):
            os.sched_setaffinity(0, choose_cpus(threads))
        set_num_threads(threads)
        out: Array = aligned(np.zeros(problem.output_shape, NUMPY_DTYPES[problem.dtype]))
        self.hold((*make_inputs(problem), out))
        self._load(request["library"])(*self.near)
        self._expected = out.copy()
        return {}

    def hold(self, tensors: Tensors) -> None:
        """The tensors to run on."""
        self.near, self._far = tensors, itertools.cycle(copies(tensors))

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of some rounds; of a single run where that took longer than the limit. WrongResult."""
        kernel = self._load(request["library"])
        out = self.near[-1]
        out.fill(np.nan)
        kernel(*self.near)
        wrong = int(np.count_nonzero(out != self._expected))
        if wrong:
            raise WrongResult(f"{wrong} of {out.size} elements differ from the default's")
        first = self._seconds(kernel, [self.near])
        if first > request["limit"]:
            return {"seconds": [first]}
        together = loops(first)
        least, most = _ROUNDS
        rounds = max(least, min(most, int(_ENOUGH / (2 * first * together))))
        return {"seconds": [self._round(kernel, together) for _ in range(rounds)]}

    def compare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of a run in each round, of all libraries; who begins a round changes from one to the next."""
        kernels = [self._load(path) for path in request["libraries"]]
        together = [loops(max(self._seconds(kernel, [self.near]) for _ in range(2))) for kernel in kernels]
        seconds: list[list[float]] = [[] for _ in kernels]
        for place in in_turn(range(len(kernels)), request["rounds"]):
            kernels[place](*self.near)  # its own data in the caches, and its code
            seconds[place].append(self._round(kernels[place], together[place]))
        return {"seconds": seconds}

    def _load(self, path: str) -> Kernel:
        function = load_function(Path(path).read_bytes(), self._problem)
        return Kernel(self._problem, Target(), "", 0, function)

    def _round(self, kernel: Kernel, together: int) -> float:
        """Seconds of a run: the mean of `together` runs on tensors in the caches, and of the same number on others."""
        near = self._seconds(kernel, [self.near] * together)
        return (near + self._seconds(kernel, list(itertools.islice(self._far, together)))) / 2

    def _seconds(self, kernel: Kernel, runs: Sequence[Tensors]) -> float:
        """Of a run, the mean of some."""
        begin = time.perf_counter()
        for tensors in runs:
            kernel(*tensors)
        return (time.perf_counter() - begin) / len(runs)


def copies(tensors: Tensors) -> list[Tensors]:
    """Enough copies that, once all have been used, no cache holds the first one any more, as with large tensors."""
    count = min(_FAR // sum(each.nbytes for each in tensors), _MOST_COPIES)
    return [tuple(map(aligned, tensors)) for _ in range(count)] or [tensors]


def main() -> None:
    """Answer until the parent is gone."""
    may_use_tiles()  # candidates may be for AMX
    worker = Measuring()
    serve({"prepare": worker.prepare, "measure": worker.measure, "compare": worker.compare})


if __name__ == "__main__":
    main()
