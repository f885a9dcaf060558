"""What the operands of a data gradient or a forward convolution read, and whether an operand is plain.

A plain operand is the user's tensor with its axes in another order: it needs no zeros and no conversion, so a schedule
may read it in place.
"""

from __future__ import annotations

from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.data_gradient import parts, y_views
from tvmconvgrad.te.forward import positions_of
from tvmconvgrad.te.tensors import Multiples, converts, group_sizes
from tvmconvgrad.te.views import PaddedView, map_accesses


def data_views(problem: Problem, multiples: Multiples) -> list[PaddedView]:
    """For each spatial axis, the padded view through which the sum reads the data operand."""
    if problem.gradient is Gradient.FORWARD:
        positions = positions_of(problem, multiples)
        return [access.view for access in map_accesses(problem.geometry, positions, multiples.implicit_axes)]
    return y_views(parts(problem, multiples))


def data_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether the data operand is plain."""
    c_group, o_group = group_sizes(problem.geometry)
    forward = problem.gradient is Gradient.FORWARD
    channels, multiple = (c_group, multiples.c) if forward else (o_group, multiples.o)
    rounded = problem.geometry.groups % multiples.groups or channels % multiple
    if rounded or converts(problem, multiples):
        return False
    return all(view.is_inside for view in data_views(problem, multiples))


def filter_is_plain(problem: Problem, multiples: Multiples) -> bool:
    """Whether all filter operands are plain; a data gradient has one for each combination of output phases."""
    if problem.gradient is Gradient.DATA:
        return all(part.filter_is_plain for part in parts(problem, multiples))
    c_group, o_group = group_sizes(problem.geometry)
    wanted = (multiples.groups, multiples.c, multiples.o)
    sizes = (problem.geometry.groups, c_group, o_group)
    return not converts(problem, multiples) and not any(size % multiple for size, multiple in zip(sizes, wanted))
