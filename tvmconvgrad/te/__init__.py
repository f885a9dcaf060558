"""The mathematics: each gradient as a tensor expression, one file an operator."""

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import data_gradient as data
from tvmconvgrad.te import forward as forwards
from tvmconvgrad.te import tensors
from tvmconvgrad.te.data_gradient import data_gradient
from tvmconvgrad.te.filter_gradient import filter_gradient
from tvmconvgrad.te.forward import forward
from tvmconvgrad.te.tensors import Multiples, Sum

__all__ = ["Multiples", "Sum", "data_is_plain", "express", "filter_is_plain"]

EXPRESSIONS = {Gradient.FILTER: filter_gradient, Gradient.DATA: data_gradient, Gradient.FORWARD: forward}


def express(problem: Problem, multiples: Multiples) -> Sum:
    """The tensor expression of `problem`, with channels, groups and positions rounded up to `multiples`."""
    return EXPRESSIONS[problem.gradient](problem, multiples)


def data_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether the data operand of a sum over positions is the user's tensor as it is, but for the order of axes."""
    geometry = problem.geometry
    c_group, o_group = tensors.group_sizes(geometry)
    if problem.gradient is Gradient.FORWARD:
        windows, _ = tensors.swept(geometry, forwards.positions_of(problem, multiples))
        return tensors.data_is_plain(problem, c_group, windows, (multiples.groups, multiples.c))
    found = data.parts(problem, multiples)
    windows = data.x_windows(found) if found else []
    return tensors.data_is_plain(problem, o_group, windows, (multiples.groups, multiples.o))


def filter_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether the filter operands of sums over positions are the user's filter as it is, but for the order of axes."""
    if problem.gradient is Gradient.DATA:
        return all(part.filter_is_plain for part in data.parts(problem, multiples))
    c_group, o_group = tensors.group_sizes(problem.geometry)
    wanted = (multiples.groups, multiples.c, multiples.o)
    sizes = (problem.geometry.groups, c_group, o_group)
    return problem.dtype == "f32" and not any(size % multiple for size, multiple in zip(sizes, wanted))
