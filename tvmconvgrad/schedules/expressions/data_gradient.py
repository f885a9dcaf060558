"""A data gradient's expression: a sum for each combination of output phases (te/data_gradient.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.data_gradient import PhaseConvolution, phase_convolutions
from tvmconvgrad.te.operands import PaddedData
from tvmconvgrad.te.phases import reaches_all
from tvmconvgrad.te.tensors import Expression, OutputMap, Stage
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.zeros import with_zeros


def data_gradient(problem: Problem, blocking: Blocking) -> Expression:
    """The data gradient of `problem`; `blocking.position` are positions of a phase."""
    y, w = tensors.placeholders(problem)
    found = phase_convolutions(problem, blocking.c, blocking.position)
    kept = phase_convolutions(problem, blocking.c, blocking.result_position or blocking.position)
    views = y_views(found, blocking.implicit_axes)
    groups, _, o_extent = blocking.operand_extents(problem)
    y_padded = PaddedData(problem, "y", y, (groups, o_extent), views, blocking.dtype).stage("y_padded")
    names = [""] if len(found) == 1 else [f"_{i}" for i in range(len(found))]
    results, output_maps = list[Stage](), list[Callable[..., OutputMap]]()
    for part, stored, name in zip(found, kept, names):
        extents = groups, tensors.ceil_to(part.channels, blocking.c), o_extent
        w_padded = part.filter(w, extents, f"w_padded{name}", blocking.dtype, blocking.last_reversed)
        result = part.sum(y_padded, [-view.shift for view in views], w_padded, f"sum{name}", blocking.last_reversed)
        if not blocking.in_place:
            shape = *result.shape[:2], *stored.positions, result.shape[-1]
            result = tensors.converted(result, shape, tensors.result_dtype(problem), f"result{name}")
        results.append(result)
        output_maps.append(part.output_map(tensors.extents_of(result)))
    operands, sums = ("y_padded", *(f"w_padded{name}" for name in names)), tuple(f"sum{name}" for name in names)
    has_gaps = any(group.reads.has_gaps for part in found for group in part.phase_groups)
    total = Expression((y, w), tuple(results), operands, sums, views)
    return with_zeros(problem, total, output_maps, has_gaps or not reaches_all(problem.geometry))


def y_views(found: Sequence[PhaseConvolution], implicit_axes: int) -> list[PaddedView]:
    """For each axis a view of all elements of y that any part reads."""
    views = []
    for axis, size in enumerate(found[0].problem.geometry.y):
        begins, ends = zip(*(part.y_range(axis) for part in found))
        view = PaddedView(size, max(ends) - min(begins), -min(begins))
        is_implicit = axis < implicit_axes and all(_may_be_implicit(part, axis) for part in found)
        views.append(view.with_implicit_padding() if is_implicit else view)
    return views


def _may_be_implicit(part: PhaseConvolution, axis: int) -> bool:
    """Whether padding along an axis may be implicit: all channels count from the same position, and the sum either
    reads no padding or goes over several taps."""
    group, (begin, end) = part.phase_groups[axis], part.y_range(axis)
    together = not part.own_first_positions or min(group.firsts) == max(group.firsts)
    inside = begin >= 0 and end <= part.problem.geometry.y[axis]
    return together and (inside or group.taps > 1)
