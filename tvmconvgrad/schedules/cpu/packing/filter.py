"""Packing a filter into panels: all of them before the work items, or by each those that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import TypeVar

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.cpu.blocks import extent, transform_written, vectorize
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.annotations import TRANSPOSE

T = TypeVar("T")

SQUARE = 16
"""So many rows of the filter are read side by side to be transposed: few enough for the core's prefetcher to follow
each. With all of a panel's rows, 64, DeepLab's aspp_dilated18 (forward, NCX) took 1.6 times as long; with half of it
3D U-Net's down4_2 1.3 times (an AMD EPYC with Zen 5)."""


@dataclass(frozen=True)
class FilterPanels:
    """What of a filter is packed together: a panel has `width` channels of N, which are "C" or "O" (`n_axis`), and K
    blocks of `block_k` channels, of so many groups. With a `run`, so many K channels of one N channel are innermost, as
    bf16 dot products need them: two, or, as rows of tile registers, all of a K block."""

    n_axis: str
    width: int
    block_k: int
    groups: int = 1
    run: int = 1

    def place(self, g: Index, *rest: Index) -> tuple[Index, ...]:
        """Where an element is packed."""
        *taps, c, o = rest
        n, k = self.n_and_k(c, o)
        outer = g // self.groups, n // self.width, k // self.block_k, *taps, k % self.block_k // self.run
        return (*outer, n % self.width, g % self.groups, k % self.run)

    def n_and_k(self, c: T, o: T) -> tuple[T, T]:
        """What of channels c and o belongs to N, and what to K."""
        return (o, c) if self.n_axis == "O" else (c, o)


def pack_filter(
    sch: Schedule,
    block: SBlockRV,
    packed: FilterPanels,
    filter_axes: str,
    at: LoopRV | None = None,
    phases: Sequence[int] = (),
) -> None:
    """Pack the filter into panels: all of them in parallel, or inside of the loop `at` those that its body reads.

    A panel has, for one block of N channels, all taps and all K channels, contiguous. (g, *taps, c, o) becomes
    (g // groups, N // width, K // block_k, *taps, K % block_k, N % width, g % groups), the order in which a register
    tile reads it. A filter with taps innermost is transposed. N may have the channels of several output phases, whose
    taps interleave in the filter: if all panels are packed together, the taps of all `phases`, along each axis, are
    packed as one run.
    """
    rank, groups = len(sch.get_loops(block)) - 3, packed.groups
    along = filter_axes.endswith(packed.n_axis)
    transform_written(sch, block, packed.place)
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    g, *taps, c, o = sch.get_loops(block)[-(3 + rank) :]
    n, k = packed.n_and_k(c, o)
    g0, g1 = sch.split(g, [None, groups])
    n0, n1 = sch.split(n, [None, packed.width])
    k0, k1 = sch.split(k, [None, packed.block_k])
    merges = bool(phases) and at is None
    if merges:
        *r, n0 = sch.split(n0, [*phases, None])
        taps = [loop for both in zip(taps, r) for loop in both]
    outer = [g0, n0]
    taps_innermost = filter_axes.endswith("X") and prod(extent(sch, loop) for loop in taps) > 1
    pairs: list[LoopRV] = []
    by_rows = packed.run > 2  # those of tile registers
    if packed.run > 1 and not by_rows:
        k1, *pairs = sch.split(k1, [None, packed.run])
    if by_rows:
        outer.append(k0)
        if taps_innermost:
            outer.append(n1)
            sch.reorder(*outer, *taps, k1, g1)
            row = sch.fuse(*taps)
        else:
            outer += taps
            sch.reorder(*outer, n1, k1, g1)
            row = n1 if along or _is_along(sch, block, filter_axes, packed.n_axis) else k1
        sch.annotate(row, TRANSPOSE, 1)
    elif groups == 1 and taps_innermost:
        square, n1 = sch.split(n1, [None, gcd(packed.width, SQUARE)])
        outer += [k0, square]
        sch.reorder(*outer, k1, *taps, n1, *pairs, g1)
        if merges:  # the taps of an axis, of all its phases, are one loop
            taps = [sch.fuse(*both) for both in zip(taps[::2], taps[1::2])]
        # Not fused here: TVM does not simplify a place where a fused loop's quotients meet those of the phases.
        first = next(loop for loop in taps if extent(sch, loop) > 1)
        sch.annotate(first, TRANSPOSE, prod(extent(sch, loop) for loop in taps))
    elif pairs and groups > 1:
        outer += [k0, *taps]
        sch.reorder(*outer, n1, k1, g1, *pairs)
        sch.annotate(k1, TRANSPOSE, 1)
    elif pairs:
        outer += [k0, *taps] if along else [*taps]
        sch.reorder(*outer, *([k1, n1] if along else [k0, k1, n1]), *pairs, g1)
        sch.annotate(n1 if along else k1, TRANSPOSE, 1)
    elif along or groups > 1:
        outer.append(k0)
        sch.reorder(*outer, *taps, k1, n1, g1)
        vectorize(sch, g1 if groups > 1 else n1)
    else:
        square, n1 = sch.split(n1, [None, gcd(packed.width, SQUARE)])
        outer += [*taps, square]
        sch.reorder(*outer, k0, k1, n1, g1)
        sch.annotate(k1, TRANSPOSE, 1)
    if at is None:
        sch.parallel(sch.fuse(*outer))


def _is_along(sch: Schedule, block: SBlockRV, filter_axes: str, n_axis: str) -> bool:
    """Whether the channels of N are contiguous in the user's filter: they are innermost but for its only tap."""
    shape = sch.get(block).reads[0].source.shape
    rank, first = len(shape) - 2, filter_axes.index("X")
    return prod(map(int, shape[first : first + rank])) == 1 and filter_axes.replace("X", "").endswith(n_axis)
