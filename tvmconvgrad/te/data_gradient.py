"""ConvolutionBackpropData: the gradient of a convolution with respect to its input.

    Y[n, y, c] = sum over k, o with y = x * stride - pads_begin + k * dilation of  X[n, x, o] * W[k, c, o]

Never by inserting zeros: along each axis the taps that meet an output element are those of one residue, so the sum
falls into small dense convolutions with stride 1, one for each residue ("output phase"). With e = gcd(stride, dilation)
and the period q = stride / e, a tap is k = r + j * q with residue 0 <= r < q, and it meets

    y + pads_begin = (t * stride) + r * dilation    where    t = x + j * (dilation / e)

so that for each r the positions t carry a convolution of X with every q-th tap, dilated by dilation / e:

    P[n, t, (r, c)] = sum over j, o of  X[n, t - j * (dilation / e), o] * W[r + j * q, c, o]

Residues with the same number of taps are computed together, as channels (r, c) of one convolution; an axis has at most
two such numbers, the ceiling and the floor of kernel / period. (To take all residues together, with zeros for missing
taps, would let an infinite X reach elements that it does not meet.) Elements of Y that no residue meets get zero. With
stride 1 there is one residue and P is Y.

Where an axis of X is shorter than the taps of a residue, as in a layer that sees its whole input at once, the same sum
goes over x instead, with j = t - x (if dilation / e is 1): the zeros are then beside the filter, and fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Place, Sum, Window


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


def all_met(geometry: Geometry) -> bool:
    """Whether a tap meets every element of Y."""
    sizes = zip(geometry.k, geometry.strides, geometry.dilations)
    return all(kernel >= stride and gcd(stride, dilation) == 1 for kernel, stride, dilation in sizes)


@dataclass(frozen=True)
class Part:
    """One combination of the axes' phases: a convolution whose channels are the residues' and c."""

    problem: Problem
    phases: tuple[Phases, ...]
    over_x: tuple[bool, ...]
    """For each axis, whether the sum goes over x, and not over taps."""
    multiples: Multiples

    @property
    def positions(self) -> list[int]:
        """How many positions t the sum has along each axis."""
        counts = [p.positions for p in self.phases]
        return [*counts[:-1], tensors.ceil_to(counts[-1], self.multiples.position)]

    @property
    def taps(self) -> int:
        """How many taps, or elements of X, the sum goes over."""
        sizes = zip(self.problem.geometry.x, self.over_x, self.phases)
        return prod(size if by_x else p.taps for size, by_x, p in sizes)

    @property
    def channels(self) -> int:
        """Channels (r, c) of a group."""
        return prod(p.residues for p in self.phases) * tensors.group_sizes(self.problem.geometry)[0]

    def residues(self, channel: Index) -> tuple[list[Index], Index]:
        """(r of each axis, from its beginning, and c) of a channel."""
        c_group, _ = tensors.group_sizes(self.problem.geometry)
        rest, c = tensors.in_group(channel, c_group, prod(p.residues for p in self.phases))
        found: list[Index] = []
        for phases in reversed(self.phases):
            if phases.residues > 1:
                found.insert(0, rest % phases.residues)
                rest = rest // phases.residues
            else:
                found.insert(0, tirx.const(0, "int64"))
        return found, c

    def j_windows(self) -> list[tuple[int, int]]:
        """(first j, number of them) that the sum reads along each axis."""
        sizes = zip(self.problem.geometry.x, self.over_x, self.phases, self.positions)
        return [(p.t_begin - size + 1, count + size - 1) if by_x else (0, p.taps) for size, by_x, p, count in sizes]

    def x_window(self, axis: int) -> tuple[int, int]:
        """(first x, end) that the sum reads along an axis."""
        phases = self.phases[axis]
        if self.over_x[axis]:
            return 0, self.problem.geometry.x[axis]
        begin = phases.t_begin - (phases.taps - 1) * phases.dilation
        return begin, phases.t_begin + self.positions[axis]

    def filter(self, w: te.Tensor, name: str) -> te.Tensor:
        """The part's filter (g, *j, (r, c), o), extended by zeros."""
        geometry, multiples = self.problem.geometry, self.multiples
        _, o_group = tensors.group_sizes(geometry)
        windows = self.j_windows()
        g_extent = tensors.ceil_to(geometry.groups, multiples.groups)
        channels, o_extent = tensors.ceil_to(self.channels, multiples.c), tensors.ceil_to(o_group, multiples.o)

        def element(g: Index, *rest: Index) -> Index:
            *j, channel, o = rest
            r, c = self.residues(channel)
            inside = tensors.within(g, geometry.groups, g_extent) + tensors.within(o, o_group, o_extent)
            inside += tensors.within(channel, self.channels, channels)
            taps = []
            for at, (begin, extent), p, r_axis, kernel in zip(j, windows, self.phases, r, geometry.k):
                tap = r_axis + p.r_begin + (at + begin) * p.period
                inside += [tap >= 0] if begin < 0 else []
                last = p.r_begin + p.residues - 1 + (begin + extent - 1) * p.period
                inside += [tap < kernel] if last >= kernel else []
                taps.append(tap)
            where = tensors.filter_index(self.problem.filter_axes, taps, c, g * o_group + o)
            return tensors.guarded(inside, lambda: w(*where))

        extents = [extent for _, extent in windows]
        return te.compute((g_extent, *extents, channels, o_extent), element, name=name)

    def sum(self, x: te.Tensor, x_begins: Sequence[int], w: te.Tensor, name: str) -> te.Tensor:
        """P[n, g, *t, (r, c)], t counted from its beginning; the stage of X begins with the elements `x_begins`."""
        geometry = self.problem.geometry
        windows = self.j_windows()
        extents = [size if by_x else p.taps for size, by_x, p in zip(geometry.x, self.over_x, self.phases)]
        names = (*tensors.spatial_names("k", geometry.rank), "o")
        *summed, o = tensors.reduce_axes((*extents, int(x.shape[2])), names)

        def element(n: Index, g: Index, *rest: Index) -> Index:
            *t, channel = rest
            x_index, w_index = [], []
            for i, at, by_x, p, x_begin, (j_begin, _) in zip(summed, t, self.over_x, self.phases, x_begins, windows):
                x_index.append(i - x_begin if by_x else at + (p.t_begin - x_begin) - i * p.dilation)
                w_index.append(at + (p.t_begin - j_begin) - i if by_x else i)
            return tensors.dot(x(n, g, o, *x_index), w(g, *w_index, channel, o), (*summed, o))

        return te.compute((geometry.batch, x.shape[1], *self.positions, w.shape[-2]), element, name=name)

    def place(self, n: Index, g: Index, *rest: Index) -> Place:
        """Where an element of the sum belongs in Y."""
        geometry, multiples = self.problem.geometry, self.multiples
        c_group, _ = tensors.group_sizes(geometry)
        *t, channel = rest
        r, c = self.residues(channel)
        inside: list[Index] = []
        where = []
        sizes = zip(geometry.y, geometry.strides, geometry.dilations, geometry.pads_begin, self.positions)
        for (y, stride, dilation, pad, count), p, at, residue in zip(sizes, self.phases, t, r):
            begin = p.t_begin * stride + p.r_begin * dilation - pad
            element = at * stride + residue * dilation + begin
            inside += [element >= 0] if begin < 0 else []
            last = begin + (count - 1) * stride + (p.residues - 1) * dilation
            inside += [element < y] if last >= y else []
            where.append(element)
        inside += tensors.within(g, geometry.groups, tensors.ceil_to(geometry.groups, multiples.groups))
        inside += tensors.within(channel, self.channels, tensors.ceil_to(self.channels, multiples.c))
        return Place(inside, list(tensors.data_index(self.problem.data_format, n, g * c_group + c, where)))


def data_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The data gradient of `problem`; positions of a phase along the last axis are rounded up, too."""
    x, w = tensors.placeholders(problem)
    found = parts(problem, multiples)
    dtype = tensors.result_dtype(problem)
    results: list[te.Tensor] = []
    places: list[Callable[..., Place]] = []
    if not found or not all_met(problem.geometry):
        results.append(te.compute(problem.output_shape, lambda *_: tirx.const(0, dtype), name="zero"))
        places.append(lambda *index: Place([], list(index)))
    if not found:
        return Sum((x, w), tuple(results), (), (), places=tuple(places))
    windows = x_windows(found)
    _, o_group = tensors.group_sizes(problem.geometry)
    x_extended = tensors.extended_data(x, problem, "x_extended", o_group, windows, (multiples.groups, multiples.o))
    names = [""] if len(found) == 1 else [f"_{i}" for i in range(len(found))]
    for part, name in zip(found, names):
        w_extended = part.filter(w, f"w_extended{name}")
        total = part.sum(x_extended, [-window.shift for window in windows], w_extended, f"sum{name}")
        results.append(_converted(total, dtype, f"result{name}"))
        places.append(part.place)
    operands = ("x_extended", *(f"w_extended{name}" for name in names))
    return Sum((x, w), tuple(results), operands, tuple(f"sum{name}" for name in names), tuple(places))


def parts(problem: Problem, multiples: Multiples) -> list[Part]:
    """All combinations of the axes' phases; none where no tap meets any element of Y."""
    geometry = problem.geometry
    numbers = zip(geometry.y, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    per_axis = [axis_phases(*axis) for axis in numbers]
    over_x = tuple(
        bool(found) and size < max(p.taps for p in found) and found[0].dilation == 1
        for size, found in zip(geometry.x, per_axis)
    )
    return [Part(problem, phases, over_x, multiples) for phases in itertools.product(*per_axis)]


def x_windows(found: Sequence[Part]) -> list[Window]:
    """All of X that any part reads, for each axis."""
    windows = []
    for axis, size in enumerate(found[0].problem.geometry.x):
        begins, ends = zip(*(part.x_window(axis) for part in found))
        windows.append(Window(size, max(ends) - min(begins), -min(begins)))
    return windows


def _converted(total: te.Tensor, dtype: str, name: str) -> te.Tensor:
    return te.compute(total.shape, lambda *i: total(*i).astype(dtype), name=name)
