"""ConvolutionBackpropData: the gradient of a convolution with respect to its input.

    for n, p, k, c, o:
        dx[n, p * stride - pads_begin + k * dilation, c] += dy[n, p, o] * w[k, c, o]

The code below computes the same sum element by element of dx, without inserting zeros between the elements of dy. Along
each axis, an element of dx reads only the taps of one output phase. So the sum splits into dense convolutions with
stride 1, one for each phase. Let e = gcd(stride, dilation), and let the period be q = stride / e. Each tap is
k = r + j * q, where 0 <= r < q is its phase. It links dy[p] with dx[i], where

    i + pads_begin = t * stride + r * dilation    and    t = p + j * (dilation / e)

So for each phase r there is one convolution over the positions t: of dy with every q-th tap, dilated by dilation / e:

    P[n, t, (r, c)] = sum over j, o of  dy[n, t - j * (dilation / e), o] * w[r + j * q, c, o]

Phases with the same number of taps are computed together, as channels (r, c) of one convolution. An axis has at most
two such numbers, the ceiling and the floor of kernel / period. The two are not merged by zeros in place of missing
taps: an infinite dy times such a zero would be NaN in elements that dy does not contribute to. Elements of dx that no
tap reaches are zero, whatever the filter holds. With stride 1 there is one phase, and P is dx.

Where dy has fewer positions along an axis than a phase has taps, as in a layer whose filter covers its whole input, the
same sum goes over p instead of j, with j = t - p (only if dilation / e is 1). The filter is then padded with zeros
instead of dy, which needs fewer of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tvm import te, tirx

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.phases import PhaseGroup, all_met, axis_phase_groups
from tvmconvgrad.te.tensors import Index, Multiples, OutputMap, Sum
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.te.zeros import with_zeros

ROUNDING = 1.1
"""All parts get the same number of positions if that makes at most so many times as many as they need. Not measured on
its own."""


@dataclass(frozen=True)
class Part:
    """One combination of the axes' phase groups: a convolution with channels (r, c)."""

    problem: Problem
    phase_groups: tuple[PhaseGroup, ...]
    over_y: tuple[bool, ...]
    """For each axis, whether the sum goes over positions of y instead of taps."""
    multiples: Multiples
    least_positions: tuple[int, ...] = ()
    """The least number of positions along each axis."""

    @cached_property
    def apart(self) -> bool:
        """Whether each phase counts its positions from its own first one.

        The first positions of two phases may differ by one. If a block of channels is of one phase, the difference
        costs nothing; otherwise all phases count from the least first position.
        """
        c_group, _ = tensors.group_sizes(self.problem.geometry)
        return c_group % self.multiples.c == 0

    def first(self, axis: int, r: Index) -> Index:
        """The position t that is number 0 of the sum, for the phase `r` of the group (0: the group's first)."""
        group = self.phase_groups[axis]
        firsts = group.firsts
        changes = [at for at in range(1, len(firsts)) if firsts[at] != firsts[at - 1]]
        if not (self.apart and changes):
            return min(firsts)
        if len(changes) > 1:
            return group.first(r + group.r_begin)
        # Written without a quotient: TVM would merge it with the quotients that compute the phase, and then not see
        # that all lanes of a vector share it. It would load the operand once for each lane.
        (at,) = changes
        behind = r if at == 1 else tirx.max(r - (at - 1), 0)
        behind = behind if at == len(firsts) - 1 else tirx.min(behind, 1)
        return firsts[0] + (firsts[at] - firsts[0]) * behind

    @cached_property
    def needed(self) -> list[int]:
        """The number of positions t that the phases need along each axis."""
        return [
            max(end - (first if self.apart else min(p.firsts)) for first, end in zip(p.firsts, p.ends))
            for p in self.phase_groups
        ]

    @cached_property
    def positions(self) -> list[int]:
        """The number of positions t along each axis, with `least_positions`; rounded up along the last axis."""
        counts = [max(counts) for counts in zip(self.needed, self.least_positions or self.needed)]
        return [*counts[:-1], tensors.ceil_to(counts[-1], self.multiples.position)]

    @cached_property
    def taps(self) -> int:
        """The number of taps, or positions of y, that the sum goes over."""
        sizes = zip(self.problem.geometry.y, self.over_y, self.phase_groups)
        return prod(size if by_y else p.taps for size, by_y, p in sizes)

    @cached_property
    def channels(self) -> int:
        """The number of channels (r, c) of a group."""
        return prod(p.phases for p in self.phase_groups) * tensors.group_sizes(self.problem.geometry)[0]

    def phases(self, channel: Index) -> tuple[list[Index], Index]:
        """The phase of each axis, counted from its group's first, and c of a channel (r, c)."""
        c_group, _ = tensors.group_sizes(self.problem.geometry)
        rest, c = tensors.in_group(channel, c_group, prod(p.phases for p in self.phase_groups))
        found: list[Index] = []
        for group in reversed(self.phase_groups):
            if group.phases > 1:
                found.insert(0, rest % group.phases)
                rest = rest // group.phases
            else:
                found.insert(0, tirx.const(0, "int64"))
        return found, c

    def j_views(self) -> list[tuple[int, int]]:
        """For each axis (first j, number of j) of the part's filter; j may lie outside of the taps where the sum goes
        over y."""
        views = []
        for size, by_y, p, count in zip(self.problem.geometry.y, self.over_y, self.phase_groups, self.positions):
            begin, end = min(p.firsts) - size + 1, max(p.firsts) + count
            views.append((begin, end - begin) if by_y else (0, p.taps))
        return views

    def y_view(self, axis: int) -> tuple[int, int]:
        """The range (first, end) of elements of y that the sum reads along an axis; it may reach beyond y."""
        group = self.phase_groups[axis]
        if self.over_y[axis]:
            return 0, self.problem.geometry.y[axis]
        last = max(group.firsts) if self.apart else min(group.firsts)
        return min(group.firsts) - (group.taps - 1) * group.dilation, last + self.positions[axis]

    def may_be_implicit(self, axis: int) -> bool:
        """Whether padding along an axis may be implicit: all channels count from the same position, and the sum either
        reads no padding or goes over several taps."""
        group, (begin, end) = self.phase_groups[axis], self.y_view(axis)
        together = not self.apart or min(group.firsts) == max(group.firsts)
        inside = begin >= 0 and end <= self.problem.geometry.y[axis]
        return axis < self.multiples.implicit_axes and together and (inside or group.taps > 1)

    @property
    def filter_is_plain(self) -> bool:
        """Whether the part's filter is the user's with its axes in another order: no zeros, no conversion."""
        _, o_group = tensors.group_sizes(self.problem.geometry)
        wanted = (self.multiples.groups, self.multiples.c, self.multiples.o)
        rounded = any(size % m for size, m in zip((self.problem.geometry.groups, self.channels, o_group), wanted))
        return not (rounded or tensors.converts(self.problem, self.multiples) or any(self.over_y))

    def filter(self, w: te.Tensor, name: str) -> te.Tensor:
        """The part's filter (g, *j, (r, c), o), padded with zeros."""
        geometry, multiples = self.problem.geometry, self.multiples
        _, o_group = tensors.group_sizes(geometry)
        views = self.j_views()
        g_extent = tensors.ceil_to(geometry.groups, multiples.groups)
        channels, o_extent = tensors.ceil_to(self.channels, multiples.c), tensors.ceil_to(o_group, multiples.o)

        def element(g: Index, *rest: Index) -> Index:
            *j, channel, o = rest
            r, c = self.phases(channel)
            inside = tensors.within(g, geometry.groups, g_extent) + tensors.within(o, o_group, o_extent)
            inside += tensors.within(channel, self.channels, channels)
            taps = []
            for at, (begin, extent), p, r_axis, kernel in zip(j, views, self.phase_groups, r, geometry.k):
                tap = r_axis + p.r_begin + (at + begin) * p.period
                inside += [tap >= 0] if begin < 0 else []
                last = p.r_begin + p.phases - 1 + (begin + extent - 1) * p.period
                inside += [tap < kernel] if last >= kernel else []
                taps.append(tap)
            where = tensors.filter_index(self.problem, taps, c, g * o_group + o)
            return tensors.guarded(inside, lambda: w(*where), multiples)

        extents = [extent for _, extent in views]
        return te.compute((g_extent, *extents, channels, o_extent), element, name=name)

    def sum(self, y: te.Tensor, y_begins: Sequence[int], w: te.Tensor, name: str) -> te.Tensor:
        """P[n, g, *t, (r, c)], with t counted from `first`. The stage `y` begins with the elements `y_begins` of y."""
        geometry = self.problem.geometry
        views = self.j_views()
        extents = [size if by_y else p.taps for size, by_y, p in zip(geometry.y, self.over_y, self.phase_groups)]
        names = (*tensors.spatial_names("k", geometry.rank), "o")
        *summed, o = tensors.reduce_axes((*extents, int(y.shape[2])), names)

        def element(n: Index, g: Index, *rest: Index) -> Index:
            *t, channel = rest
            r, _ = self.phases(channel)
            y_index, w_index = [], []
            for axis, (i, at, p) in enumerate(zip(summed, t, self.phase_groups)):
                begin, (j_begin, _), first = y_begins[axis], views[axis], self.first(axis, r[axis])
                y_index.append(i - begin if self.over_y[axis] else at + (first - begin) - i * p.dilation)
                w_index.append(at + (first - j_begin) - i if self.over_y[axis] else i)
            return tensors.dot(y(n, g, o, *y_index), w(g, *w_index, channel, o), (*summed, o), self.multiples)

        return te.compute((geometry.batch, y.shape[1], *self.positions, w.shape[-2]), element, name=name)

    def output_map(self, n: Index, g: Index, *rest: Index) -> OutputMap:
        """Where an element of the sum belongs in x."""
        geometry, multiples = self.problem.geometry, self.multiples
        c_group, _ = tensors.group_sizes(geometry)
        *t, channel = rest
        r, c = self.phases(channel)
        inside: list[Index] = []
        where = []
        for axis, (p, at, phase, count) in enumerate(zip(self.phase_groups, t, r, self.positions)):
            position = at + self.first(axis, phase)
            element = position * p.stride + (phase + p.r_begin) * p.step - p.pad
            firsts = p.firsts if self.apart else [min(p.firsts)] * p.phases
            begins = [first * p.stride + (p.r_begin + i) * p.step - p.pad for i, first in enumerate(firsts)]
            inside += [element >= 0] if min(begins) < 0 else []
            inside += [element < p.x] if max(begins) + (count - 1) * p.stride >= p.x else []
            inside += p.reads.conditions(position)
            where.append(element)
        inside += tensors.within(g, geometry.groups, tensors.ceil_to(geometry.groups, multiples.groups))
        inside += tensors.within(channel, self.channels, tensors.ceil_to(self.channels, multiples.c))
        return OutputMap(inside, list(tensors.data_index(self.problem, "x", n, g * c_group + c, where)))


def data_gradient(problem: Problem, multiples: Multiples) -> Sum:
    """The data gradient of `problem`; the positions of a phase along the last axis are also rounded up."""
    y, w = tensors.placeholders(problem)
    found = parts(problem, multiples)
    dtype, results, output_maps = tensors.result_dtype(problem), list[te.Tensor](), list[Callable[..., OutputMap]]()
    views = y_views(found)
    _, o_group = tensors.group_sizes(problem.geometry)
    y_padded = tensors.padded_data(y, problem, "y", "y_padded", o_group, views, multiples, multiples.o)
    names = [""] if len(found) == 1 else [f"_{i}" for i in range(len(found))]
    for part, name in zip(found, names):
        w_padded = part.filter(w, f"w_padded{name}")
        total = part.sum(y_padded, [-view.shift for view in views], w_padded, f"sum{name}")
        stored = replace(part, multiples=replace(multiples, position=multiples.aside or multiples.position))
        shape = *total.shape[:2], *stored.positions, total.shape[-1]
        results.append(total if multiples.direct else tensors.converted(total, shape, dtype, f"result{name}"))
        output_maps.append(stored.output_map)
    operands = ("y_padded", *(f"w_padded{name}" for name in names))
    total = Sum((y, w), tuple(results), operands, tuple(f"sum{name}" for name in names), views)
    has_gaps = any(group.reads.has_gaps for part in found for group in part.phase_groups)
    return with_zeros(problem, total, output_maps, has_gaps or not all_met(problem.geometry))


def parts(problem: Problem, multiples: Multiples) -> list[Part]:
    """All combinations of the axes' phase groups."""
    geometry = problem.geometry
    numbers = zip(geometry.y, geometry.x, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    per_axis = [axis_phase_groups(*axis) for axis in numbers]
    over_y = tuple(
        size < max(p.taps for p in found) and found[0].dilation == 1 for size, found in zip(geometry.y, per_axis)
    )
    found = [Part(problem, phase_groups, over_y, multiples) for phase_groups in itertools.product(*per_axis)]
    return _alike(found)


def _alike(found: Sequence[Part]) -> list[Part]:
    """The parts, all with the same number of positions if that adds few (`ROUNDING`). Where x is odd, phases differ by
    one position; only parts of equal size split into the same work items, which can be fused
    (schedules/transforms/task_fusion.py)."""
    most = tuple(max(counts) for counts in zip(*(part.needed for part in found)))
    if len(found) * prod(most) > ROUNDING * sum(prod(part.needed) for part in found):
        return list(found)
    return [replace(part, least_positions=most) for part in found]


def y_views(found: Sequence[Part]) -> list[PaddedView]:
    """For each axis a view of all elements of y that any part reads."""
    views = []
    for axis, size in enumerate(found[0].problem.geometry.y):
        begins, ends = zip(*(part.y_view(axis) for part in found))
        view = PaddedView(size, max(ends) - min(begins), -min(begins))
        views.append(view.with_implicit_padding() if all(part.may_be_implicit(axis) for part in found) else view)
    return views
