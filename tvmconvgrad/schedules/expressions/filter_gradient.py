"""A weights gradient's expression: the sum of te/filter_gradient.py, with its operands and its result.

With image halves, each half of an image counts as an image. dw stays the same, since it is the sum over all images.
With an odd number of rows, both halves share the middle row at weight 1/2: exact for normal bf16, and the CPU's
instruction takes smaller numbers as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import te, tirx

from tvmconvgrad.schedules.expressions.access_maps import im2col, map_accesses
from tvmconvgrad.schedules.expressions.blocking import Blocking
from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.spec.layouts import make_shape
from tvmconvgrad.te import filter_gradient as mathematics
from tvmconvgrad.te import tensors
from tvmconvgrad.te.operands import PaddedData
from tvmconvgrad.te.tensors import ACCUMULATOR, BITS, Expression, Index, OutputMap, Stage
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.zeros import of_taps, read_by, with_zeros


def filter_gradient(problem: Problem, blocking: Blocking) -> Expression:
    """The weights gradient of `problem`."""
    geometry, halves = problem.geometry, blocking.image_halves
    first, second = tensors.placeholders(problem)
    x, y = (second, first) if problem.transposed else (first, second)
    positions, (groups, *channels) = blocking.positions(problem), blocking.operand_extents(problem)
    accesses = map_accesses(_of_products(geometry), positions, blocking.implicit_axes)
    x_views = [access.view for access in accesses]
    y_views = [PaddedView(size, extent) for size, extent in zip(geometry.y, positions)]
    c_block, o_block = (tensors.ceil_to(*each) for each in zip(tensors.group_sizes(geometry), blocking.packed_blocks))
    x_form = Form(accesses[-1].stride if blocking.x_by_phases else 1, halves, positions[0], accesses[0].stride)
    y_form = Form(1, halves, positions[0], shares_row=positions[0] % halves > 0)
    x_padded = x_form.stage(PaddedData(problem, "x", x, (groups, c_block), x_views, blocking.dtype), "x_padded")
    y_padded = y_form.stage(PaddedData(problem, "y", y, (groups, o_block), y_views, blocking.dtype), "y_padded")
    c_extent, o_extent = channels
    total = mathematics.filter_gradient(
        problem, im2col(x_padded, accesses, x_form.phases), y_padded, (c_extent, o_extent)
    )
    # A row that is padding for one half may be data of the other, so the first axis has no padding to leave out.
    rows = int(x_padded.shape[3])
    views = x_views if halves == 1 else [PaddedView(rows, rows), *x_views[1:]]
    found = Expression((first, second), (total,), ("x_padded", "y_padded"), ("sum",), views)
    has_gaps = any(axis.has_gaps for axis in of_taps(geometry))
    if blocking.in_place:
        return with_zeros(problem, found, [mathematics.output_map(problem, tensors.extents_of(total))], has_gaps)
    found = replace(found, results=(_in_filter_order(problem, total),))
    if problem.crop is None and not has_gaps and not problem.flips_filter:
        return found
    return with_zeros(problem, found, [_filter_map(problem)], has_gaps)


def _of_products(geometry: Geometry) -> Geometry:
    """The geometry with as much of x as products have. Surplus positions would multiply the rest, which may be
    infinite, by zeros."""
    axes = zip(geometry.x, geometry.y, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    read = (min(x, (y - 1) * s + (k - 1) * d + 1 - pad) for x, y, k, s, d, pad in axes)
    return replace(geometry, x=tuple(read))


@dataclass(frozen=True)
class Form:
    """In which form a weights gradient stores a data operand."""

    phases: int
    """Element i of the last axis is stored at (i % phases, i // phases), if there are several."""
    image_halves: int
    rows: int
    """The rows of y."""
    stride: int = 1
    """The rows of this operand for each row of y."""
    shares_row: bool = False
    """Whether the two halves of an image share a row, which has the weight 1/2 in both."""

    @property
    def second_half_row(self) -> int:
        """The row with which the second half of an image begins."""
        return (self.rows - -(-self.rows // self.image_halves)) * self.stride

    def stage(self, data: PaddedData, name: str) -> Stage:
        """The operand in this form."""
        *views, last = data.views
        data = replace(data, views=[*views, replace(last, extent=tensors.ceil_to(last.extent, self.phases))])
        extents = [view.extent for view in data.views]
        if self.phases > 1:
            extents[-1:] = [self.phases, extents[-1] // self.phases]
        extents[0] -= (self.image_halves - 1) * self.second_half_row
        shape = (data.problem.geometry.batch * self.image_halves, *data.extents, *extents)
        return te.compute(shape, lambda *index: self._element(data, *index), name=name)

    def _element(self, data: PaddedData, n: Index, g: Index, c: Index, *space: Index) -> Index:
        if self.phases > 1:
            *outer, phase, run = space
            space = (*outer, run * self.phases + phase)
        if self.image_halves == 1:
            return data.element(n, g, c, space)
        row, half = space[0], n % self.image_halves
        shared = row == (1 - half) * self.second_half_row
        space = (row + half * self.second_half_row, *space[1:])
        scaled = (lambda bits: _halved(bits, shared)) if self.shares_row else None
        return data.element(n // self.image_halves, g, c, space, scaled)


def _halved(bits: Index, where: Index) -> Index:
    """A bf16 by its bits, times 1/2 `where` that holds."""
    half = tensors.as_f32(bits) * tirx.Select(where, tirx.const(0.5, ACCUMULATOR), tirx.const(1.0, ACCUMULATOR))
    return (tirx.reinterpret("uint32", half) >> tirx.const(16, "uint32")).astype(BITS)


def _in_filter_order(problem: Problem, total: Stage) -> Stage:
    """The sum in the order of the user's axes, converted."""
    geometry = problem.geometry
    c_group, o_group = tensors.group_sizes(geometry)

    def element(*index: Index) -> Index:
        space, c, o = tensors.filter_parts(problem, index)
        g, o = tensors.in_group(o, o_group, geometry.groups)
        return total(g, *space, c, o).astype(tensors.result_dtype(problem))

    shape = make_shape(problem.filter_axes, {"C": c_group, "O": geometry.o}, geometry.k)
    return te.compute(shape, element, name="result")


def _filter_map(problem: Problem) -> Callable[..., OutputMap]:
    """The map from an element in the order of the user's axes to the user's filter, which may have more taps."""
    taps = of_taps(problem.geometry)

    def map_element(*index: Index) -> OutputMap:
        space, c, o = tensors.filter_parts(problem, index)
        return OutputMap(read_by(taps, space), list(tensors.filter_index(problem, space, c, o)))

    return map_element
