"""Whether an operand of a sum over positions is the user's tensor as it is, but for the order of axes.

Such an operand needs no zeros and no conversion, and a schedule may read it where it lies.
"""

from __future__ import annotations

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.data_gradient import parts, x_windows
from tvmconvgrad.te.forward import positions_of
from tvmconvgrad.te.tensors import Multiples, group_sizes, is_plain, swept


def data_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether the data operand is."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    if problem.gradient is Gradient.FORWARD:
        windows, _ = swept(geometry, positions_of(problem, multiples))
        return is_plain(problem, c_group, windows, (multiples.groups, multiples.c))
    found = parts(problem, multiples)
    windows = x_windows(found) if found else []
    return is_plain(problem, o_group, windows, (multiples.groups, multiples.o))


def filter_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether the filter operands are."""
    if problem.gradient is Gradient.DATA:
        return all(part.filter_is_plain for part in parts(problem, multiples))
    c_group, o_group = group_sizes(problem.geometry)
    wanted = (multiples.groups, multiples.c, multiples.o)
    sizes = (problem.geometry.groups, c_group, o_group)
    return problem.dtype == "f32" and not any(size % multiple for size, multiple in zip(sizes, wanted))
