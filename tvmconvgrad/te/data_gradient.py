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
taps, would let an infinite X reach elements that it does not meet.) Elements of Y that no tap meets get zero, whatever
the filter holds. With stride 1 there is one residue and P is Y.

Where an axis of X is shorter than the taps of a residue, as in a layer that sees its whole input at once, the same sum
goes over x instead, with j = t - x (if dilation / e is 1): the zeros are then beside the filter, and fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, prod

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index, Multiples, Place, Sum
from tvmconvgrad.te.windows import Window
from tvmconvgrad.te.zeros import Meeting, with_zeros

ROUNDING = 1.1
"""How many times more positions the parts of a sum may have than they need."""


@dataclass(frozen=True)
class Phases:
    """The residues r_begin <= r < r_begin + residues of one axis, each with `taps` taps."""

    x: int
    y: int
    stride: int
    pad: int
    step: int
    """The convolution's dilation: how far the taps of a residue lie apart in Y, over the period."""
    r_begin: int
    residues: int
    taps: int

    @property
    def period(self) -> int:
        """How many taps lie between those of one residue."""
        return self.stride // gcd(self.stride, self.step)

    @property
    def dilation(self) -> int:
        """How many elements of X lie between the taps of one residue."""
        return self.step // gcd(self.stride, self.step)

    def first(self, r: Index) -> Index:
        """The first position t that a residue has in Y."""
        return -((r * self.step - self.pad) // self.stride)

    @cached_property
    def firsts(self) -> list[int]:
        """The first position of each residue."""
        return [int(self.first(r)) for r in range(self.r_begin, self.r_begin + self.residues)]

    @cached_property
    def ends(self) -> list[int]:
        """The position behind the last one of each residue."""
        residues = range(self.r_begin, self.r_begin + self.residues)
        return [(self.y - 1 + self.pad - r * self.step) // self.stride + 1 for r in residues]

    @cached_property
    def meeting(self) -> Meeting:
        """What the residues' positions meet of X."""
        reach = (self.taps - 1) * self.dilation
        return Meeting(range(min(self.firsts), max(self.ends)), 1, reach, self.dilation, self.taps, self.x)


@lru_cache(maxsize=64)  # a schedule asks for each tile that it may take
def axis_phases(x: int, y: int, kernel: int, stride: int, dilation: int, pad: int) -> tuple[Phases, ...]:
    """The phases of one axis, those with more taps first."""
    period = stride // gcd(stride, dilation)
    more = kernel % period
    met = {r for r in range(min(period, kernel)) if (r * dilation - pad) % stride < y}
    return tuple(
        Phases(x, y, stride, pad, dilation, r_begin, residues, taps)
        for r_begin, residues, taps in ((0, more, kernel // period + 1), (more, period - more, kernel // period))
        if taps and not met.isdisjoint(range(r_begin, r_begin + residues))
    )


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
    least_positions: tuple[int, ...] = ()
    """How many positions the sum has along each axis at least."""

    @cached_property
    def apart(self) -> bool:
        """Whether each residue has positions of its own, and not all of them the same.

        Their first positions may differ by one. Where a block of channels has one residue, that costs nothing.
        """
        c_group, _ = tensors.group_sizes(self.problem.geometry)
        return c_group % self.multiples.c == 0

    def first(self, axis: int, r: Index) -> Index:
        """The position that the sum counts from, for a residue (from its beginning)."""
        phases = self.phases[axis]
        firsts = phases.firsts
        changes = [at for at in range(1, len(firsts)) if firsts[at] != firsts[at - 1]]
        if not (self.apart and changes):
            return min(firsts)
        if len(changes) > 1:
            return phases.first(r + phases.r_begin)
        # Without a quotient: TVM would merge it with those that make the residue, and then not see that all lanes of a
        # vector share it. Each lane would have its operand loaded anew.
        (at,) = changes
        behind = r if at == 1 else tirx.max(r - (at - 1), 0)
        behind = behind if at == len(firsts) - 1 else tirx.min(behind, 1)
        return firsts[0] + (firsts[at] - firsts[0]) * behind

    @cached_property
    def met(self) -> list[int]:
        """How many positions t the sum needs along each axis."""
        return [
            max(end - (first if self.apart else min(p.firsts)) for first, end in zip(p.firsts, p.ends))
            for p in self.phases
        ]

    @cached_property
    def positions(self) -> list[int]:
        """How many positions t the sum has along each axis."""
        counts = [max(counts) for counts in zip(self.met, self.least_positions or self.met)]
        return [*counts[:-1], tensors.ceil_to(counts[-1], self.multiples.position)]

    @cached_property
    def taps(self) -> int:
        """How many taps, or elements of X, the sum goes over."""
        sizes = zip(self.problem.geometry.x, self.over_x, self.phases)
        return prod(size if by_x else p.taps for size, by_x, p in sizes)

    @cached_property
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
        windows = []
        for size, by_x, p, count in zip(self.problem.geometry.x, self.over_x, self.phases, self.positions):
            begin, end = min(p.firsts) - size + 1, max(p.firsts) + count
            windows.append((begin, end - begin) if by_x else (0, p.taps))
        return windows

    def x_window(self, axis: int) -> tuple[int, int]:
        """(first x, end) that the sum reads along an axis."""
        phases = self.phases[axis]
        if self.over_x[axis]:
            return 0, self.problem.geometry.x[axis]
        last = max(phases.firsts) if self.apart else min(phases.firsts)
        return min(phases.firsts) - (phases.taps - 1) * phases.dilation, last + self.positions[axis]

    def may_be_bare(self, axis: int) -> bool:
        """Whether pads along an axis need not be stored: all channels begin at the same position, and the sum meets no
        pads, or goes over taps."""
        phases, (begin, end) = self.phases[axis], self.x_window(axis)
        together = not self.apart or min(phases.firsts) == max(phases.firsts)
        inside = begin >= 0 and end <= self.problem.geometry.x[axis]
        return axis < self.multiples.bare_axes and together and (inside or phases.taps > 1)

    @property
    def filter_is_plain(self) -> bool:
        """Whether the part's filter is the user's as it is, but for the order of axes."""
        _, o_group = tensors.group_sizes(self.problem.geometry)
        wanted = (self.multiples.groups, self.multiples.c, self.multiples.o)
        rounded = any(size % m for size, m in zip((self.problem.geometry.groups, self.channels, o_group), wanted))
        return not (rounded or tensors.converts(self.problem, self.multiples) or any(self.over_x))

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
            where = tensors.filter_index(self.problem, taps, c, g * o_group + o)
            return tensors.guarded(inside, lambda: w(*where), multiples)

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
            r, _ = self.residues(channel)
            x_index, w_index = [], []
            for axis, (i, at, p) in enumerate(zip(summed, t, self.phases)):
                begin, (j_begin, _), first = x_begins[axis], windows[axis], self.first(axis, r[axis])
                x_index.append(i - begin if self.over_x[axis] else at + (first - begin) - i * p.dilation)
                w_index.append(at + (first - j_begin) - i if self.over_x[axis] else i)
            return tensors.dot(x(n, g, o, *x_index), w(g, *w_index, channel, o), (*summed, o), self.multiples)

        return te.compute((geometry.batch, x.shape[1], *self.positions, w.shape[-2]), element, name=name)

    def place(self, n: Index, g: Index, *rest: Index) -> Place:
        """Where an element of the sum belongs in Y."""
        geometry, multiples = self.problem.geometry, self.multiples
        c_group, _ = tensors.group_sizes(geometry)
        *t, channel = rest
        r, c = self.residues(channel)
        inside: list[Index] = []
        where = []
        for axis, (p, at, residue, count) in enumerate(zip(self.phases, t, r, self.positions)):
            position = at + self.first(axis, residue)
            element = position * p.stride + (residue + p.r_begin) * p.step - p.pad
            firsts = p.firsts if self.apart else [min(p.firsts)] * p.residues
            begins = [first * p.stride + (p.r_begin + i) * p.step - p.pad for i, first in enumerate(firsts)]
            inside += [element >= 0] if min(begins) < 0 else []
            inside += [element < p.y] if max(begins) + (count - 1) * p.stride >= p.y else []
            inside += p.meeting.conditions(position)
            where.append(element)
        inside += tensors.within(g, geometry.groups, tensors.ceil_to(geometry.groups, multiples.groups))
        inside += tensors.within(channel, self.channels, tensors.ceil_to(self.channels, multiples.c))
        return Place(inside, list(tensors.data_index(self.problem, "y", n, g * c_group + c, where)))


def data_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The data gradient of `problem`; positions of a phase along the last axis are rounded up, too."""
    x, w = tensors.placeholders(problem)
    found = parts(problem, multiples)
    dtype, results, places = tensors.result_dtype(problem), list[te.Tensor](), list[Callable[..., Place]]()
    windows = x_windows(found)
    _, o_group = tensors.group_sizes(problem.geometry)
    x_extended = tensors.extended_data(x, problem, "x", "x_extended", o_group, windows, multiples, multiples.o)
    names = [""] if len(found) == 1 else [f"_{i}" for i in range(len(found))]
    for part, name in zip(found, names):
        w_extended = part.filter(w, f"w_extended{name}")
        total = part.sum(x_extended, [-window.shift for window in windows], w_extended, f"sum{name}")
        placed = replace(part, multiples=replace(multiples, position=1)) if multiples.aside else part
        shape = *total.shape[:2], *placed.positions, total.shape[-1]
        results.append(total if multiples.direct else tensors.converted(total, shape, dtype, f"result{name}"))
        places.append(placed.place)
    operands = ("x_extended", *(f"w_extended{name}" for name in names))
    total = Sum((x, w), tuple(results), operands, tuple(f"sum{name}" for name in names), windows)
    has_gaps = any(phases.meeting.has_gaps for part in found for phases in part.phases)
    return with_zeros(problem, total, places, has_gaps or not all_met(problem.geometry))


def parts(problem: Problem, multiples: Multiples) -> list[Part]:
    """All combinations of the axes' phases."""
    geometry = problem.geometry
    numbers = zip(geometry.x, geometry.y, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    per_axis = [axis_phases(*axis) for axis in numbers]
    over_x = tuple(
        size < max(p.taps for p in found) and found[0].dilation == 1 for size, found in zip(geometry.x, per_axis)
    )
    found = [Part(problem, phases, over_x, multiples) for phases in itertools.product(*per_axis)]
    return _alike(found)


def _alike(found: Sequence[Part]) -> list[Part]:
    """Parts that have as many positions, if that is little more: where Y is odd, phases differ by one, and only alike
    they split into the same tasks (schedules/transforms/task_fusion.py)."""
    most = tuple(max(counts) for counts in zip(*(part.met for part in found)))
    if len(found) * prod(most) > ROUNDING * sum(prod(part.met) for part in found):
        return list(found)
    return [replace(part, least_positions=most) for part in found]


def x_windows(found: Sequence[Part]) -> list[Window]:
    """All of X that any part reads, for each axis."""
    windows = []
    for axis, size in enumerate(found[0].problem.geometry.x):
        begins, ends = zip(*(part.x_window(axis) for part in found))
        window = Window(size, max(ends) - min(begins), -min(begins))
        windows.append(window.bared() if all(part.may_be_bare(axis) for part in found) else window)
    return windows
