"""The exact result by the definition, as a worker computes it.

It has a process of its own because NumPy's matrix products leave threads behind that wait actively for a tenth of a
second: beside the first rounds of whoever is measured next. A worker stands still between its answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmconvgrad import operators
from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.operators import Compiled
from tvmconvgrad.reference import reference


class Definition:
    """One gradient in float64; slow, so that it is computed once, however often it runs."""

    def __init__(self, job: Job, tensors: Tensors) -> None:
        operator: type[Compiled] = getattr(operators, job.operator)
        first, second = (job.laid_out(role, tensors[role]) for role in job.inputs)
        problem = operator(**job.all_attributes).problem(first.shape, second.shape, None, job.dtype)
        self._result = job.canonical(job.result, reference(problem, first, second))
        self.facts: dict[str, Any] = {}

    def run(self) -> None:
        """The result is there."""

    def result(self) -> Array:
        """The exact sums in the canonical layout, as f32, which holds them."""
        return self._result.astype(np.float32)

    def release(self) -> None:
        """The array goes with this object."""
