"""One gradient or forward by all variants: measured, and compared with the exact result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.bench.results.measurement import Measurement
from tvmconvgrad.bench.tensors import check_ours, difference, make_inputs
from tvmconvgrad.bench.variants import OURS, Variant
from tvmconvgrad.bench.workers.session import Ready, Session
from tvmconvgrad.layers import LayerGradient


def measure(session: Session, suite: str, gradient: LayerGradient, rounds: int, seed: int) -> Measurement:
    """Measure one gradient or forward. Raises WrongResult where ours computes anything but the exact sums.

    A peer's error in that is noted in the measurement, and so is why one does not take the gradient.
    """
    problem = gradient.problem
    job = Job.of(problem)
    if gradient.kind == "forward":
        job = job.as_forward()
    tensors = make_inputs(problem, job, seed)
    ready: Mapping[str, Ready] = {}
    if job.dtype != "f32":
        in_f32 = job.in_formats(job.data_format, job.filter_format, "f32")
        witnesses = _witnesses(session.variants)
        ready = session.prepare(in_f32, tensors, lambda variant: variant.label in witnesses).ready
    prepared = session.prepare(job, tensors)
    exact = _exact(session, job, tensors, ready or prepared.ready)
    differences = {}
    for label, found in prepared.ready.items():
        dtype = found.variant.job(job).dtype
        if found.variant.kind == "ours":
            by_tiles = str(found.facts.get("schedule")).startswith("winograd")
            check_ours(label, found.result, exact, dtype, by_tiles)
        elif told := difference(found.result, exact, dtype):
            differences[label] = told
    times = session.time(prepared, rounds)
    facts = prepared.ready[OURS].facts
    return Measurement.of(
        suite,
        gradient.layer,
        problem,
        job.operator if job.is_forward else None,
        **{name: facts[name] for name in ("workspace_bytes", "schedule", "origin")},
        rounds=times,
        refusals=prepared.refusals,
        differences=differences,
    )


def _witnesses(variants: Sequence[Variant]) -> list[str]:
    """Who computes in f32 what is measured in another type: ours, and one peer."""
    return [OURS, *[variant.label for variant in variants if variant.kind != "ours"][:1]]


def _exact(session: Session, job: Job, tensors: Tensors, ready: Mapping[str, Ready]) -> Array:
    """The exact sums, which are integers: our f32 result, if rounding it to integers gives a peer's; otherwise by the
    definition, which is slow."""
    mine = np.rint(ready[OURS].result)
    peers = [found.result for found in ready.values() if found.variant.kind != "ours"]
    if any(np.array_equal(mine, result) for result in peers):
        return mine
    return session.define(job, tensors)
