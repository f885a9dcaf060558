"""The problem that a kernel computes in place of the user's: the same sum on the same memory, with fewer numbers."""

from __future__ import annotations

from tvmconvgrad.spec.problem import Problem
from tvmconvgrad.spec.reducing.cropping import cropped
from tvmconvgrad.spec.reducing.merging import merged
from tvmconvgrad.spec.reducing.orders import in_best_order


def reduced(problem: Problem) -> Problem:
    """`problem` with as few axes, positions and taps as compute it. Problems that reduce to the same share a kernel."""
    return cropped(merged(in_best_order(problem)))


def forms(problem: Problem) -> tuple[Problem, ...]:
    """A reduced problem, and, if it has one, the same sum with longer axes: an axis along which no tap moves has joined
    one before it along which taps move."""
    if problem.crop is not None or problem.is_empty:
        return (problem,)
    return tuple(dict.fromkeys((problem, merged(problem, along_taps=True))))


def needs_no_code(problem: Problem) -> bool:
    """Whether a call does nothing but fill with zeros, or, if it accumulates, nothing at all."""
    epilogue, delta = problem.epilogue, problem.input_shapes[problem.delta_input]
    if epilogue.bias_delta and 0 not in delta:
        return False
    if epilogue.bias and 0 not in problem.output_shape:
        return False
    return problem.is_empty or (epilogue.accumulate and reduced(problem).is_zero)
