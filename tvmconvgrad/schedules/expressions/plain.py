"""What the operands of a data gradient or a forward convolution read, and whether an operand is plain.

A plain operand is the user's tensor with its axes in another order: it needs no zeros and no conversion, so a schedule
may read it in place.
"""

from __future__ import annotations

from tvmconvgrad.schedules.expressions.access_maps import map_accesses
from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.schedules.expressions.data_gradient import y_views
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.data_gradient import phase_convolutions
from tvmconvgrad.te.tensors import group_sizes
from tvmconvgrad.te.views import PaddedView


def data_views(problem: Problem, blocking: Blocking) -> list[PaddedView]:
    """For each spatial axis, the padded view through which the sum reads the data operand."""
    if problem.gradient is Gradient.FORWARD:
        accesses = map_accesses(problem.geometry, blocking.positions(problem), blocking.implicit_axes)
        return [access.view for access in accesses]
    return y_views(phase_convolutions(problem, blocking.c, blocking.position), blocking.implicit_axes)


def data_is_plain(problem: Problem, blocking: Blocking) -> bool:
    """Whether the data operand is plain."""
    c_group, o_group = group_sizes(problem.geometry)
    forward = problem.gradient is Gradient.FORWARD
    channels, multiple = (c_group, blocking.c) if forward else (o_group, blocking.o)
    rounded = problem.geometry.groups % blocking.groups or channels % multiple
    if rounded or blocking.converts(problem):
        return False
    return all(view.is_inside for view in data_views(problem, blocking))


def filter_is_plain(problem: Problem, blocking: Blocking) -> bool:
    """Whether all filter operands are plain; a data gradient has one for each combination of output phases."""
    c_group, o_group = group_sizes(problem.geometry)
    channels = [c_group]
    if problem.gradient is Gradient.DATA:
        found = phase_convolutions(problem, blocking.c, blocking.position)
        channels = [part.channels for part in found]
        if any(any(part.over_y) for part in found):
            return False
    rounded = problem.geometry.groups % blocking.groups or o_group % blocking.o
    return not (rounded or blocking.converts(problem) or any(each % blocking.c for each in channels))
