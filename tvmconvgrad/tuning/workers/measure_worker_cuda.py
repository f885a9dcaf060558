"""A worker that runs kernels on the first GPU. It loads no compiler.

It answers what measure_worker.py answers, without threads; a "library" is a file of the cache's format, with machine
code and launches. Times are between the driver's events around single calls; before each, memory that is larger than
the L2 cache is overwritten: a layer finds its data there in no network.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmconvgrad.bench.workers.session import in_turn
from tvmconvgrad.cache.entry import read_entry
from tvmconvgrad.nvidia import driver
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.runtime.cuda.function import CudaFunction, Where
from tvmconvgrad.runtime.cuda.memory import Memory
from tvmconvgrad.spec import Problem
from tvmconvgrad.tuning.search.inputs import Array, WrongResult, make_inputs
from tvmconvgrad.workers.serving import serve

_HERE = Where(0, driver.LEGACY_STREAM)
_FLUSHED_BYTES = 256 << 20
_CALLS = 3  # of which the median counts
_ROUNDS = (3, 10)  # at least and at most
_ENOUGH = 0.05  # seconds that a candidate is measured for


class GpuMeasuring:
    """One problem at a time."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make inputs and compute what is right; candidates are then compared with that."""
        self._problem = problem = Problem.from_dict(request["problem"])
        self._held.close()
        with driver.driver().on(_HERE.gpu):
            self._inputs = [self._uploaded(array) for array in make_inputs(problem)]
            self._result: Array = np.empty(problem.output_shape, NUMPY_DTYPES[problem.dtype])
            self._out, self._flushed = self._memory(self._result.nbytes), self._memory(_FLUSHED_BYTES)
            self._expected = self._computed(*self._load(request["library"])).copy()
        return {}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of some rounds; of a single one where that took longer than the limit. WrongResult."""
        with driver.driver().on(_HERE.gpu), ExitStack() as stack:
            function, workspace = self._load(request["library"], stack)
            wrong = int(np.count_nonzero(self._computed(function, workspace) != self._expected))
            if wrong:
                raise WrongResult(f"{wrong} of {self._result.size} elements differ from the default's")
            first = self._seconds(function, workspace)
            if first > request["limit"]:
                return {"seconds": [first]}
            least, most = _ROUNDS
            rounds = max(least, min(most, int(_ENOUGH / (_CALLS * first))))
            return {"seconds": [self._seconds(function, workspace) for _ in range(rounds)]}

    def compare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of a call in each round, of all libraries; who begins a round changes from one to the next."""
        with driver.driver().on(_HERE.gpu), ExitStack() as stack:
            kernels = [self._load(path, stack) for path in request["libraries"]]
            for kernel in kernels:
                self._seconds(*kernel)
            seconds: list[list[float]] = [[] for _ in kernels]
            for place in in_turn(range(len(kernels)), request["rounds"]):
                seconds[place].append(self._seconds(*kernels[place]))
        return {"seconds": seconds}

    def _load(self, path: str, stack: ExitStack | None = None) -> tuple[CudaFunction, int]:
        """A kernel's function, and the address of its workspace."""
        entry = read_entry(Path(path))
        launches = [Launch.from_dict(launch) for launch in entry.facts["launches"]]
        workspace = self._memory(entry.facts["workspace_bytes"], stack)
        return CudaFunction(entry.library, launches, entry.description["arch"]), workspace.address

    def _computed(self, function: CudaFunction, workspace: int) -> Array:
        device, out = driver.driver(), self._out
        self._result.fill(np.nan)
        device.upload(out.address, self._result.ctypes.data, out.bytes)
        self._call(function, workspace)
        device.synchronize(_HERE.stream)
        device.download(self._result.ctypes.data, out.address, out.bytes)
        return self._result

    def _seconds(self, function: CudaFunction, workspace: int) -> float:
        return median(self._one(function, workspace) for _ in range(_CALLS))

    def _one(self, function: CudaFunction, workspace: int) -> float:
        device = driver.driver()
        device.clear(self._flushed.address, self._flushed.bytes, _HERE.stream)
        with device.event() as begin, device.event() as end:
            device.record(begin, _HERE.stream)
            self._call(function, workspace)
            device.record(end, _HERE.stream)
            device.synchronize(_HERE.stream)
            return device.milliseconds(begin, end) / 1e3

    def _call(self, function: CudaFunction, workspace: int) -> None:
        first, second = self._inputs
        function(_HERE, first.address, second.address, self._out.address, workspace)

    def _uploaded(self, array: Array) -> Memory:
        array = np.ascontiguousarray(array)
        memory = self._memory(array.nbytes)
        driver.driver().upload(memory.address, array.ctypes.data, array.nbytes)
        return memory

    def _memory(self, size: int, stack: ExitStack | None = None) -> Memory:
        """Memory until `stack` ends, by default until the next problem."""
        memory = Memory(_HERE.gpu, size)
        (self._held if stack is None else stack).callback(memory.close)
        return memory


def main() -> None:
    """Answer until the parent is gone."""
    worker = GpuMeasuring()
    serve({"prepare": worker.prepare, "measure": worker.measure, "compare": worker.compare})


if __name__ == "__main__":
    main()
