"""Expressions in the form that a schedule asks for: the sums of te/, with operands and results as it reads and writes.

te/ says what is computed. What differs from schedule to schedule is here: blocks that extents are rounded up to,
operands that are stored in another form, and whether the sum is the result itself (`Blocking`).
"""

from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.schedules.expressions.data_gradient import data_gradient
from tvmconvgrad.schedules.expressions.filter_gradient import filter_gradient
from tvmconvgrad.schedules.expressions.forward import forward
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.zeros import nothing

__all__ = ["Blocking", "express"]

EXPRESSIONS = {Gradient.FILTER: filter_gradient, Gradient.DATA: data_gradient, Gradient.FORWARD: forward}

UNBLOCKED = Blocking()
"""The operands and results as the mathematics has them, the former padded."""


def express(problem: Problem, blocking: Blocking = UNBLOCKED) -> Expression:
    """The tensor expression of `problem`, in the form that a schedule asks for."""
    found = nothing(problem) if problem.is_zero else EXPRESSIONS[problem.gradient](problem, blocking)
    return with_bias(problem, found)
