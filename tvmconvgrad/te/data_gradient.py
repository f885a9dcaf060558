"""ConvolutionBackpropData: the gradient of a convolution with respect to its input.

    Y[n, y, c] = sum over k, o with y = x * stride - pads_begin + k * dilation of  X[n, x, o] * W[k, c, o]

Never by inserting zeros: along each axis the taps that meet an output element are those of one residue, so the sum
falls into small dense convolutions with stride 1, one for each residue ("output phase"). With e = gcd(stride, dilation)
and the period q = stride / e, a tap is k = r + j * q with residue 0 <= r < q, and it meets

    y + pads_begin = (t * stride) + r * dilation    where    t = x + j * (dilation / e)

so that for each r the positions t carry a convolution of X with every q-th tap, dilated by dilation / e:

    P[n, r, t, c] = sum over j, o of  X[n, t - j * (dilation / e), o] * W[r + j * q, c, o]

Where an axis of X is shorter than the taps of a residue, as in a layer that sees its whole input at once, the same sum
goes over x instead, with j = t - x (if dilation / e is 1): the zeros are then beside the filter, and fewer.

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
    per_axis = [
        axis_phases(*numbers)
        for numbers in zip(geometry.y, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    ]
    combinations = list(itertools.product(*per_axis))
    if not combinations:
        zero = te.compute(problem.output_shape, lambda *_: tirx.const(0, tensors.result_dtype(problem)), name="result")
        return Sum((x, w, zero), (), (), "result", direct=False)
    operands = _extended_operands(x, w, problem, combinations, multiples)
    names = ["sum"] if len(combinations) == 1 else [f"sum_{i}" for i in range(len(combinations))]
    parts = [_phase_sum(geometry, operands, phases, multiples, name) for phases, name in zip(combinations, names)]

    def interleaved(*index: Index) -> Index:
        return _interleave(problem, combinations, parts, index).astype(tensors.result_dtype(problem))

    result = te.compute(problem.output_shape, interleaved, name="result")
    direct = all(stride == 1 for stride in geometry.strides)
    return Sum((x, w, result), ("x_extended", "w_extended"), tuple(names), "result", direct)


def _positions(phases: Sequence[Phases], multiples: Multiples) -> list[int]:
    """How many positions t a phase's sum has along each axis."""
    return [*(p.positions for p in phases[:-1]), tensors.ceil_to(phases[-1].positions, multiples.position)]


@dataclass(frozen=True)
class Operands:
    """X and W extended by zeros over all that any phase reads."""

    x: te.Tensor
    w: te.Tensor
    over_x: list[bool]
    """For each axis, whether the sum goes over x, and not over taps."""
    x_begins: list[int]
    """Which element of X the stage begins with; of W, likewise."""
    w_begins: list[int]


def _extended_operands(
    x: te.Tensor, w: te.Tensor, problem: Problem, combinations: Sequence[tuple[Phases, ...]], multiples: Multiples
) -> Operands:
    geometry = problem.geometry
    over_x, x_windows, w_windows = [], [], []
    for axis, (size, taps) in enumerate(zip(geometry.x, geometry.k)):
        reads = [(phases[axis], _positions(phases, multiples)[axis]) for phases in combinations]
        over_x.append(size < max(p.taps for p, _ in reads) and reads[0][0].dilation == 1)
        if over_x[-1]:
            begin = min(p.r_begin + (p.t_begin - (size - 1)) * p.period for p, _ in reads)
            last = max(p.r_begin + p.residues - 1 + (p.t_begin + count - 1) * p.period for p, count in reads)
            x_windows.append(Window(size, size))
            w_windows.append(Window(taps, last + 1 - begin, -begin))
        else:
            begin = min(p.t_begin - (p.taps - 1) * p.dilation for p, _ in reads)
            end = max(p.t_begin + count for p, count in reads)
            x_windows.append(Window(size, end - begin, -begin))
            w_windows.append(Window(taps, taps))
    _, o_group = tensors.group_sizes(geometry)
    rounding = (multiples.groups, multiples.o)
    return Operands(
        tensors.extended_data(x, problem, "x_extended", o_group, x_windows, rounding),
        tensors.extended_filter(w, problem, "w_extended", w_windows, multiples),
        over_x,
        [-window.shift for window in x_windows],
        [-window.shift for window in w_windows],
    )


def _phase_sum(
    geometry: Geometry, operands: Operands, phases: Sequence[Phases], multiples: Multiples, name: str
) -> te.Tensor:
    """P[n, g, *r, *t, c] for one combination of phases, r and t counted from their beginnings."""
    rank, over_x = geometry.rank, operands.over_x
    extents = [size if by_x else p.taps for size, by_x, p in zip(geometry.x, over_x, phases)]
    *summed, o = tensors.reduce_axes((*extents, operands.x.shape[2]), (*tensors.spatial_names("k", rank), "o"))

    def element(n: Index, g: Index, *rest: Index) -> Index:
        r, t, c = rest[:rank], rest[rank : 2 * rank], rest[-1]
        at = [i + p.t_begin for i, p in zip(t, phases)]
        x = [i if by_x else here - i * p.dilation for i, by_x, here, p in zip(summed, over_x, at, phases)]
        j = [here - i if by_x else i for i, by_x, here in zip(summed, over_x, at)]
        taps = [i + p.r_begin + tap * p.period for i, p, tap in zip(r, phases, j)]
        x_index = [i - begin for i, begin in zip(x, operands.x_begins)]
        w_index = [i - begin for i, begin in zip(taps, operands.w_begins)]
        return tensors.dot(operands.x(n, g, o, *x_index), operands.w(g, *w_index, c, o), (*summed, o))

    shape = (geometry.batch, operands.x.shape[1], *(p.residues for p in phases), *_positions(phases, multiples))
    return te.compute((*shape, operands.w.shape[-2]), element, name=name)


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
