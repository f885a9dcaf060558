"""ConvolutionBackpropData, the gradient of a convolution with respect to its input, and the forward of ConvTranspose.

    for n, p, k, c, o:
        dx[n, p * stride - pads_begin + k * dilation, c] += dy[n, p, o] * w[k, c, o]

n is the image, p a position of dy and k a tap of the filter, each with an index for every spatial axis; c and o are
channels of x and of y. With groups, each group has such a sum of its own.

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
tap reaches are zero, whatever the filter holds. With stride 1 there is one phase, and P[n, i + pads_begin, c] is
dx[n, i, c].

Where dy has fewer positions along an axis than a phase has taps, as in a layer whose filter covers its whole input, the
same sum goes over p instead of j, with j = t - p (only if dilation / e is 1). The filter is then padded with zeros
instead of dy, which needs fewer of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from tvm import te, tirx

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import tensors
from tvmconvgrad.te.operands import guarded
from tvmconvgrad.te.phases import PhaseGroup, axis_phase_groups
from tvmconvgrad.te.tensors import Index, OutputMap, Stage

ROUNDING = 1.1
"""All parts get the same number of positions if that makes at most this many times the positions that they need. 1.0
and 1.43 change no sum (benchmarks/constants.py)."""


@dataclass(frozen=True)
class PhaseConvolution:
    """One combination of the axes' phase groups: a convolution with channels (r, c). `sum` is its loop nest."""

    problem: Problem
    phase_groups: tuple[PhaseGroup, ...]
    over_y: tuple[bool, ...]
    """For each axis, whether the sum goes over positions of y instead of taps."""
    own_first_positions: bool
    """Whether each phase counts its positions t from its own first one. Otherwise all phases of a group count from the
    smallest first position among them. Without dilation, first positions differ by at most one."""
    positions: tuple[int, ...] = ()
    """The number of positions t along each axis, at least those `needed`."""

    def sum(self, y: Stage, y_begins: Sequence[int], w: Stage, name: str, last_reversed: bool = False) -> Stage:
        """The sum P[n, g, *t, (r, c)] over j, or over positions of y, and over all channels o that the stages have.
        Positions t count from `first`, and the stage `y` begins with the elements `y_begins` of y. The stage `w` may
        have its last axis reversed, so that a sum over taps reads both operands forwards."""
        geometry = self.problem.geometry
        extents = [size if by_y else p.taps for size, by_y, p in zip(geometry.y, self.over_y, self.phase_groups)]
        *terms, o = tensors.reduce_axes((*extents, y.shape[2]), (*tensors.spatial_names("k", geometry.rank), "o"))

        def element(n: Index, g: Index, *rest: Index) -> Index:
            *t, channel = rest
            r, _ = self.phases(channel)
            term = [*terms[:-1], self._last(terms[-1])] if last_reversed else terms
            factors = [self._factors(axis, *each) for axis, each in enumerate(zip(t, r, term, y_begins))]
            at, j = zip(*factors)
            j = (*j[:-1], terms[-1]) if last_reversed else j
            return tensors.dot(y(n, g, o, *at), w(g, *j, channel, o), (*terms, o))

        return te.compute((geometry.batch, y.shape[1], *self.positions, w.shape[-2]), element, name=name)

    def _factors(self, axis: int, t: Index, r: Index, i: Index, y_begin: int) -> tuple[Index, Index]:
        """What term `i` of the sum multiplies at position t of phase r: the elements (t - j * dilation, j) of the
        stages of y and of the filter, where i is j or, if the sum goes over y, the position of y."""
        first = self.first(axis, r)
        if self.over_y[axis]:
            j_begin, _ = self.j_ranges()[axis]
            return i - y_begin, t + (first - j_begin) - i
        return t + (first - y_begin) - i * self.phase_groups[axis].dilation, i

    def _last(self, i: Index) -> Index:
        """The tap along the last axis that is number `i` from its end."""
        return self.phase_groups[-1].taps - 1 - i

    def filter(
        self, w: Stage, extents: tuple[int, int, int], name: str, dtype: str, last_reversed: bool = False
    ) -> Stage:
        """The part's filter (g, *j, (r, c), o), with `extents` (g, (r, c), o) that are at least its own; `dtype` as in
        te/operands.py. The last axis may be reversed (`sum`)."""
        geometry = self.problem.geometry
        _, o_group = tensors.group_sizes(geometry)
        ranges, (groups, channels, o_extent) = self.j_ranges(), extents

        def element(g: Index, *rest: Index) -> Index:
            *j, channel, o = rest
            j = [*j[:-1], self._last(j[-1])] if last_reversed else j
            r, c = self.phases(channel)
            inside = tensors.within(g, geometry.groups, groups) + tensors.within(o, o_group, o_extent)
            inside += tensors.within(channel, self.channels, channels)
            taps = []
            for at, (begin, extent), p, r_axis, kernel in zip(j, ranges, self.phase_groups, r, geometry.k):
                tap = r_axis + p.r_begin + (at + begin) * p.period
                inside += [tap >= 0] if begin < 0 else []
                last = p.r_begin + p.phases - 1 + (begin + extent - 1) * p.period
                inside += [tap < kernel] if last >= kernel else []
                taps.append(tap)
            where = tensors.filter_index(self.problem, taps, c, g * o_group + o)
            return guarded(inside, lambda: w(*where), dtype)

        return te.compute((groups, *(extent for _, extent in ranges), channels, o_extent), element, name=name)

    def output_map(self, shape: Sequence[int]) -> Callable[..., OutputMap]:
        """The map from an element of a stage of this `shape`, (n, g, *t, (r, c)) as the sum's, to the user's tensor.
        Surplus elements, and those that read nothing but padding, have none there."""
        geometry = self.problem.geometry
        c_group, _ = tensors.group_sizes(geometry)

        def map_element(n: Index, g: Index, *rest: Index) -> OutputMap:
            *t, channel = rest
            r, c = self.phases(channel)
            inside: list[Index] = []
            where = []
            for axis, (p, at, phase, count) in enumerate(zip(self.phase_groups, t, r, shape[2:-1])):
                position = at + self.first(axis, phase)
                element = position * p.stride + (phase + p.r_begin) * p.step - p.pad
                firsts = p.firsts if self.own_first_positions else [min(p.firsts)] * p.phases
                begins = [first * p.stride + (p.r_begin + i) * p.step - p.pad for i, first in enumerate(firsts)]
                inside += [element >= 0] if min(begins) < 0 else []
                inside += [element < p.x] if max(begins) + (count - 1) * p.stride >= p.x else []
                inside += p.reads.conditions(position)
                where.append(element)
            inside += tensors.within(g, geometry.groups, shape[1])
            inside += tensors.within(channel, self.channels, shape[-1])
            return OutputMap(inside, list(tensors.data_index(self.problem, "x", n, g * c_group + c, where)))

        return map_element

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

    def first(self, axis: int, r: Index) -> Index:
        """The position t that is number 0 of the sum, for the phase `r` of the group (0: the group's first)."""
        group = self.phase_groups[axis]
        firsts = group.firsts
        changes = [at for at in range(1, len(firsts)) if firsts[at] != firsts[at - 1]]
        if not (self.own_first_positions and changes):
            return min(firsts)
        if len(changes) > 1:
            return group.first(r + group.r_begin)
        # Written without a quotient: TVM would merge it with the quotients that compute the phase, and then not see
        # that all lanes of a vector share it. It would load the operand once for each lane.
        (at,) = changes
        behind = r if at == 1 else tirx.max(r - (at - 1), 0)
        behind = behind if at == len(firsts) - 1 else tirx.min(behind, 1)
        return firsts[0] + (firsts[at] - firsts[0]) * behind

    def j_ranges(self) -> list[tuple[int, int]]:
        """For each axis (first j, number of j) of the part's filter; j may lie outside of the taps where the sum goes
        over y."""
        ranges = []
        for size, by_y, p, count in zip(self.problem.geometry.y, self.over_y, self.phase_groups, self.positions):
            begin, end = min(p.firsts) - size + 1, max(p.firsts) + count
            ranges.append((begin, end - begin) if by_y else (0, p.taps))
        return ranges

    def y_range(self, axis: int) -> tuple[int, int]:
        """The range (first, end) of elements of y that the sum reads along an axis; it may reach beyond y."""
        group = self.phase_groups[axis]
        if self.over_y[axis]:
            return 0, self.problem.geometry.y[axis]
        last = max(group.firsts) if self.own_first_positions else min(group.firsts)
        return min(group.firsts) - (group.taps - 1) * group.dilation, last + self.positions[axis]

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """The number of positions t that the phases need along each axis."""
        if self.own_first_positions:
            return tuple(max(end - first for first, end in zip(p.firsts, p.ends)) for p in self.phase_groups)
        return tuple(max(p.ends) - min(p.firsts) for p in self.phase_groups)

    @cached_property
    def taps(self) -> int:
        """The number of taps, or positions of y, that the sum goes over."""
        sizes = zip(self.problem.geometry.y, self.over_y, self.phase_groups)
        return prod(size if by_y else p.taps for size, by_y, p in sizes)

    @cached_property
    def channels(self) -> int:
        """The number of channels (r, c) of a group."""
        return prod(p.phases for p in self.phase_groups) * tensors.group_sizes(self.problem.geometry)[0]


@lru_cache(maxsize=64)  # cost models ask for the same ones for tile after tile
def phase_convolutions(problem: Problem, c: int = 1, position: int = 1) -> tuple[PhaseConvolution, ...]:
    """All combinations of the axes' phase groups, which make up the sum.

    Positions along the last axis are rounded up to a multiple of `position`. Channels are taken by blocks of `c`: if
    each block is of one phase, phases have their `own_first_positions`.
    """
    geometry = problem.geometry
    numbers = zip(geometry.y, geometry.x, geometry.k, geometry.strides, geometry.dilations, geometry.pads_begin)
    per_axis = [axis_phase_groups(*axis) for axis in numbers]
    over_y = tuple(
        size < max(p.taps for p in found) and found[0].dilation == 1 for size, found in zip(geometry.y, per_axis)
    )
    own_first_positions = tensors.group_sizes(geometry)[0] % c == 0
    found = [
        PhaseConvolution(problem, phase_groups, over_y, own_first_positions)
        for phase_groups in itertools.product(*per_axis)
    ]
    return tuple(
        replace(part, positions=(*counts[:-1], tensors.ceil_to(counts[-1], position)))
        for part, counts in zip(found, _alike(found))
    )


def sums_over_taps(found: Sequence[PhaseConvolution]) -> bool:
    """Whether there are parts, and all of them sum over taps, not over positions of y."""
    return bool(found) and not any(any(part.over_y) for part in found)


def _alike(found: Sequence[PhaseConvolution]) -> list[tuple[int, ...]]:
    """The numbers of positions of the parts: all the same if that adds few (`ROUNDING`). Where x is odd, phases differ
    by one position; only parts of equal size split into the same work items, which can be fused."""
    needed = [part.needed for part in found]
    most = tuple(map(max, zip(*needed)))
    if len(found) * prod(most) > ROUNDING * sum(map(prod, needed)):
        return needed
    return [most] * len(found)
