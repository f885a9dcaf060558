"""The problem that a kernel computes in place of the user's: the same sum on the same memory, with fewer numbers."""

from __future__ import annotations

from tvmconvgrad.spec.cropping import cropped
from tvmconvgrad.spec.merging import merged
from tvmconvgrad.spec.problem import Problem


def reduced(problem: Problem) -> Problem:
    """`problem` with as few axes, positions and taps as compute it. Problems that reduce to the same share a kernel."""
    return cropped(merged(problem))
