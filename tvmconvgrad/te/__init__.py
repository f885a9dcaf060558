"""The mathematics: each gradient as a tensor expression, one file for each of the three sums."""

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.bias import with_bias
from tvmconvgrad.te.data_gradient import data_gradient
from tvmconvgrad.te.filter_gradient import filter_gradient
from tvmconvgrad.te.forward import forward
from tvmconvgrad.te.tensors import Multiples, Sum
from tvmconvgrad.te.zeros import nothing

__all__ = ["Multiples", "Sum", "express"]

EXPRESSIONS = {Gradient.FILTER: filter_gradient, Gradient.DATA: data_gradient, Gradient.FORWARD: forward}


def express(problem: Problem, multiples: Multiples) -> Sum:
    """The tensor expression of `problem`; channels, groups and positions are rounded up to `multiples`."""
    found = nothing(problem) if problem.is_zero else EXPRESSIONS[problem.gradient](problem, multiples)
    return with_bias(problem, found)
