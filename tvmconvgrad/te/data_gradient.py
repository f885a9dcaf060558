"""ConvolutionBackpropData: the gradient of a convolution with respect to its input.

    Y[n, y, c] = sum over k, o with y = x * stride - pads_begin + k * dilation of  X[n, x, o] * W[k, c, o]

Never by inserting zeros: along each axis the taps that meet an output element are those of one residue, so the sum
falls into small dense convolutions with stride 1, one for each residue ("output phase"). With e = gcd(stride, dilation)
and the period q = stride / e, a tap is k = r + j * q with residue 0 <= r < q, and it meets

    y + pads_begin = (t * stride) + r * dilation    where    t = x + j * (dilation / e)

so that for each r the positions t carry a convolution of X with every q-th tap, dilated by dilation / e:

    P[n, r, t, c] = sum over j, o of  X[n, t - j * (dilation / e), o] * W[r + j * q, c, o]

Residues with the same number of taps are computed together; an axis has at most two such numbers, the ceiling and the
floor of kernel / period. Elements of Y that no residue meets get zero. With stride 1 there is one residue and P is Y.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Sum, Window


@dataclass(frozen=True)
class Phases:
    """The residues r_begin <= r < r_begin + residues of one axis, each with `taps` taps, at positions from t_begin."""

    r_begin: int
    residues: int
    taps: int
    t_begin: int
    positions: int
    dilation: int
    period: int

    def holds(self, r: Index, period: int) -> list[Index]:
        """The conditions for r to be one of these residues, knowing 0 <= r < period."""
        above = [r >= self.r_begin] if self.r_begin else []
        below = [r < self.r_begin + self.residues] if self.r_begin + self.residues < period else []
        return above + below


def axis_phases(y: int, kernel: int, stride: int, dilation: int, pad: int) -> list[Phases]:
    """The phases of one axis, those with more taps first; none where no tap meets any element of Y."""
    common = gcd(stride, dilation)
    period = stride // common
    more = kernel % period
    met = {r for r in range(period) if (r * dilation - pad) % stride < y}
    found = []
    for r_begin, residues, taps in ((0, more, kernel // period + 1), (more, period - more, kernel // period)):
        if not taps or met.isdisjoint(range(r_begin, r_begin + residues)):
            continue
        t_begin = -(((r_begin + residues - 1) * dilation - pad) // stride)
        t_end = (y - 1 + pad - r_begin * dilation) // stride
        found.append(Phases(r_begin, residues, taps, t_begin, t_end - t_begin + 1, dilation // common, period))
    return found


def data_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The data gradient of `problem`; positions of a phase along the last axis are rounded up, too."""
    geometry = problem.geometry
    x, w = tensors.placeholders(problem)
    w_extended = tensors.extended_filter(w, problem, "w_extended", multiples)
    per_axis = [
        axis_phases(*numbers)
        for numbers in zip(geometry.y, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    ]
    combinations = list(itertools.product(*per_axis))
    if not combinations:
        zero = te.compute(problem.output_shape, lambda *_: tirx.const(0, tensors.result_dtype(problem)), name="result")
        return Sum((x, w, zero), (), (), "result", direct=False)
    x_extended, begins = _extended_gradient(x, problem, combinations, multiples)
    names = ["sum"] if len(combinations) == 1 else [f"sum_{i}" for i in range(len(combinations))]
    parts = [
        _phase_sum(geometry, x_extended, begins, w_extended, phases, multiples, name)
        for phases, name in zip(combinations, names)
    ]

    def interleaved(*index: Index) -> Index:
        return _interleave(problem, combinations, parts, index).astype(tensors.result_dtype(problem))

    result = te.compute(problem.output_shape, interleaved, name="result")
    direct = all(stride == 1 for stride in geometry.strides)
    return Sum((x, w, result), ("x_extended", "w_extended"), tuple(names), "result", direct)


def _positions(phases: Sequence[Phases], multiples: Multiples) -> list[int]:
    """How many positions t a phase's sum has along each axis."""
    return [*(p.positions for p in phases[:-1]), tensors.ceil_to(phases[-1].positions, multiples.position)]


def _extended_gradient(
    x: te.Tensor, problem: Problem, combinations: Sequence[tuple[Phases, ...]], multiples: Multiples
) -> tuple[te.Tensor, list[int]]:
    """X extended by zeros over all that any phase reads, and the place in X where that begins along each axis."""
    geometry = problem.geometry
    begins, ends = [], []
    for axis in range(geometry.rank):
        reads = [(phases, _positions(phases, multiples)[axis]) for phases in combinations]
        begins.append(min(p[axis].t_begin - (p[axis].taps - 1) * p[axis].dilation for p, _ in reads))
        ends.append(max(p[axis].t_begin + positions for p, positions in reads))
    _, o_group = tensors.group_sizes(geometry)
    windows = [Window(size, end - begin, -begin) for size, begin, end in zip(geometry.x, begins, ends)]
    rounding = (multiples.groups, multiples.o)
    return tensors.extended_data(x, problem, "x_extended", o_group, windows, rounding), begins


def _phase_sum(
    geometry: Geometry,
    x_extended: te.Tensor,
    begins: Sequence[int],
    w_extended: te.Tensor,
    phases: Sequence[Phases],
    multiples: Multiples,
    name: str,
) -> te.Tensor:
    """P[n, g, *r, *t, c] for one combination of phases, r and t counted from their beginnings."""
    rank = geometry.rank
    *j, o = tensors.reduce_axes(
        (*(p.taps for p in phases), x_extended.shape[2]), (*tensors.spatial_names("k", rank), "o")
    )

    def element(n: Index, g: Index, *rest: Index) -> Index:
        r, t, c = rest[:rank], rest[rank : 2 * rank], rest[-1]
        meets = [i + p.t_begin - b - tap * p.dilation for i, p, b, tap in zip(t, phases, begins, j)]
        taps = [i + p.r_begin + tap * p.period for i, p, tap in zip(r, phases, j)]
        return tensors.dot(x_extended(n, g, o, *meets), w_extended(g, *taps, c, o), (*j, o))

    shape = (geometry.batch, x_extended.shape[1], *(p.residues for p in phases), *_positions(phases, multiples))
    return te.compute((*shape, w_extended.shape[-2]), element, name=name)


def _interleave(
    problem: Problem,
    combinations: Sequence[tuple[Phases, ...]],
    parts: Sequence[te.Tensor],
    index: tuple[Index, ...],
) -> Index:
    """The element of Y at the user's `index`: from the phase that meets it, or zero."""
    geometry = problem.geometry
    c_group, _ = tensors.group_sizes(geometry)
    n, channel, y = tensors.split_data_index(problem.data_format, index)
    g, c = tensors.in_group(channel, c_group, geometry.groups)
    whole: list[Index] = []
    residues: list[Index] = []
    positions: list[Index] = []
    for i, stride, dilation, pad in zip(y, geometry.strides, geometry.dilations, geometry.pads_begin):
        common = gcd(stride, dilation)
        period = stride // common
        inverse = pow(dilation // common, -1, period) if period > 1 else 0
        padded = i + pad
        r = tirx.floormod(tirx.floordiv(padded, common) * inverse, period) if period > 1 else tirx.const(0, "int64")
        whole += [tirx.floormod(padded, common) == 0] if common > 1 else []
        residues.append(r)
        positions.append(tirx.floordiv(padded - r * dilation, stride))
    value: Index = tirx.const(0, tensors.ACCUMULATOR)
    for phases, part in zip(combinations, parts):
        r = [i - p.r_begin for i, p in zip(residues, phases)]
        t = [i - p.t_begin for i, p in zip(positions, phases)]
        taken = part(n, g, *r, *t, c)
        conditions = whole + [held for i, p in zip(residues, phases) for held in p.holds(i, p.period)]
        value = tirx.if_then_else(tirx.all(*conditions), taken, value) if conditions else taken
    return value
