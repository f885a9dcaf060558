"""Our own kernels, as a worker runs them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmconvgrad import operators
from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.bench.tensors import aligned
from tvmconvgrad.operators import Compiled
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES


class Ours:
    """One compiled gradient on NumPy arrays in the job's layout, with a result that is allocated once."""

    def __init__(self, job: Job, tensors: Tensors, target: str, schedule: str | None, tuned: bool) -> None:
        operator: type[Compiled] = getattr(operators, job.operator)
        self._job = job
        self._first, self._second = (aligned(job.laid_out(role, tensors[role])) for role in job.inputs)
        shapes = self._first.shape, self._second.shape
        self._kernel = operator(**job.all_attributes).compile(
            *shapes, dtype=job.dtype, target=target, schedule=schedule, tuned=tuned
        )
        self._out = aligned(np.zeros(job.shape(job.result), NUMPY_DTYPES[job.dtype]))
        self.facts: dict[str, Any] = {
            "schedule": self._kernel.schedule,
            "origin": self._kernel.origin,
            "workspace_bytes": self._kernel.workspace_bytes,
        }

    def run(self) -> None:
        """Compute the gradient once."""
        self._kernel(self._first, self._second, self._out)

    def result(self) -> Array:
        """The result in the canonical layout."""
        return self._job.canonical(self._job.result, self._out)

    def release(self) -> None:
        """The arrays go with this object."""
