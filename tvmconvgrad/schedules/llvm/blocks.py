"""Rewrites that the CPU's schedules share: packing an operand, and the loops of a register tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.te.tensors import Index

VECTORISED_ROW = 64
"""The longest loop that becomes vector code at once, in elements; a longer one is split first."""


def pack_data(
    sch: Schedule, block: SBlockRV, data_format: str, channels: int, groups: int, at: LoopRV | None = None
) -> None:
    """Store a data operand by blocks of channels and groups: all of it in parallel, or inside of the loop `at`.

    (n, g, c, *space) becomes (n, g // groups, c // channels, *space, c % channels, g % groups): a tile then reads one
    short contiguous run for each position. In the user's layout those runs would lie a power of two apart, which maps
    them to few sets of the cache. Inside of a loop only what that loop's body reads is packed, and stays in the cache.
    """
    rank = len(sch.get_loops(block)) - 3
    sch.transform_layout(block, ("write", 0), _by_rank(rank, _blocked_data(channels, groups)))
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    n, g, c, *space = sch.get_loops(block)[-(3 + rank) :]
    g0, g1 = sch.split(g, [None, groups])
    c0, c1 = sch.split(c, [None, channels])
    outer = [n, *space[:-1], g0, c0] if data_format == "NXC" else [n, g0, c0, *space[:-1]]
    sch.reorder(*outer, space[-1], c1, g1)
    _vectorize(sch, g1 if groups > 1 else c1)
    if at is None:
        sch.parallel(sch.fuse(*outer))


def pack_filter(sch: Schedule, block: SBlockRV, lanes: tuple[str, int], reduced: int, groups: int) -> None:
    """Store the filter by panels: for a block of lanes (`"c"` or `"o"`) all taps and summed channels, contiguous.

    (g, *k, c, o) becomes (g // groups, lanes block, summed block, *k, summed % reduced, lane, g % groups), the very
    order in which a register tile reads it.
    """
    rank = len(sch.get_loops(block)) - 3
    channel, width = lanes
    sch.transform_layout(block, ("write", 0), _by_rank(rank, _paneled_filter(channel == "o", width, reduced, groups)))
    g, *k, c, o = sch.get_loops(block)
    lane, summed = (o, c) if channel == "o" else (c, o)
    g0, g1 = sch.split(g, [None, groups])
    lane0, lane1 = sch.split(lane, [None, width])
    summed0, summed1 = sch.split(summed, [None, reduced])
    sch.reorder(g0, lane0, summed0, *k, summed1, lane1, g1)
    _vectorize(sch, g1 if groups > 1 else lane1)
    sch.parallel(sch.fuse(g0, lane0, summed0))


def _blocked_data(channels: int, groups: int) -> Callable[..., tuple[Index, ...]]:
    def layout(n: Index, g: Index, c: Index, *space: Index) -> tuple[Index, ...]:
        return (n, g // groups, c // channels, *space, c % channels, g % groups)

    return layout


def _paneled_filter(lanes_are_o: bool, width: int, reduced: int, groups: int) -> Callable[..., tuple[Index, ...]]:
    def layout(g: Index, *rest: Index) -> tuple[Index, ...]:
        *k, c, o = rest
        lane, summed = (o, c) if lanes_are_o else (c, o)
        return (g // groups, lane // width, summed // reduced, *k, summed % reduced, lane % width, g % groups)

    return layout


def _by_rank(rank: int, layout: Callable[..., tuple[Index, ...]]) -> Callable[..., tuple[Index, ...]]:
    """The layout as a function of a fixed number of indices, which is all that TVM's index maps take."""
    fixed: dict[int, Callable[..., tuple[Index, ...]]] = {
        1: lambda a, b, c, d: layout(a, b, c, d),
        2: lambda a, b, c, d, e: layout(a, b, c, d, e),
        3: lambda a, b, c, d, e, f: layout(a, b, c, d, e, f),
    }
    return fixed[rank]


def _vectorize(sch: Schedule, loop: LoopRV) -> None:
    if extent(sch, loop) > 1:
        sch.vectorize(loop)


def extent(sch: Schedule, loop: LoopRV) -> int:
    """A loop's constant extent."""
    return int(sch.get(loop).extent)


def vectorize_tile(sch: Schedule, tile: Sequence[LoopRV], lanes: int) -> None:
    """Vectorise the last loop of a register tile that is longer than 1, `lanes` at a time, and unroll all others.

    A longer vector would be LLVM's to split, and it does not keep one of, say, three registers in registers.
    """
    wide = [loop for loop in tile if extent(sch, loop) > 1]
    if not wide:
        return
    *outer, vector = wide
    if extent(sch, vector) > lanes:
        registers, vector = sch.split(vector, [None, lanes])
        outer.append(registers)
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(vector)


def finish_pass(sch: Schedule, block: SBlockRV) -> None:
    """An elementwise pass over memory: rows in parallel, the innermost loop in vectors."""
    *outer, last = sch.get_loops(block)
    length = extent(sch, last)
    width = largest_divisor(length, VECTORISED_ROW)
    if width > 1:
        inner = last
        if width < length:
            last, inner = sch.split(last, [None, width])
            outer.append(last)
        sch.vectorize(inner)
    if outer:
        sch.parallel(sch.fuse(*outer))


def divisors(value: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    return sorted({*small, *(value // d for d in small)})


def largest_divisor(value: int, limit: int) -> int:
    """The largest divisor of `value` that does not exceed `limit` (at least 1)."""
    return max(d for d in divisors(value) if d <= max(limit, 1))


def inner_extents(extents: Sequence[int], limit: int) -> list[int]:
    """Split a nest of loops in two: how much of each is inner, so that the inner part has about `limit` steps.

    The innermost loops are taken whole while they fit, then a divisor of the next; loops outside of that stay outer.
    """
    inner = [1] * len(extents)
    for i in reversed(range(len(extents))):
        inner[i] = largest_divisor(extents[i], limit // prod(inner[i + 1 :]))
        if inner[i] < extents[i]:
            break
    return inner
