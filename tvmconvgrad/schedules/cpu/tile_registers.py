"""What rules share whose sums stay in AMX's tile registers (tir/passes/tiles.py): the shape of a block, what its
instructions cost, and its loops.

A tile register has up to 16 rows of 16 sums, M x N. A block has m x n tiles. For each K block it loads m tiles of one
operand and n of the other, for m * n products of tiles. So 2 x 2 tiles load half as much for each product as one tile
does, and four sums in turn hide the instruction's latency. Few rows take as long as 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.tir.annotations import TILES
from tvmconvgrad.tir.passes.tiles import COLUMNS as COLUMNS
from tvmconvgrad.tir.passes.tiles import TileBlock

ROWS = 16
"""The most rows of a tile register, and the most pairs of K that an instruction adds up."""

LEAST_CHANNELS = 16
"""Weights gradients with fewer channels have tiles of taps, and data of fewer channels is packed, so that an
instruction adds up several taps: ResNeXt's conv3b_grouped, of 8, took 1.27 times as long with tiles of channels
(filters; an Intel Xeon with AMX)."""

MULTIPLYING, LATENCY = 16, 52
"""Cycles from one TDPBF16PS to the next, and until another one may add to its sum (Intel's optimisation manual). With
2 x 2 tiles 4.8 ns each were measured at 16 rows, and 5.0 ns at 4 rows (an Intel Xeon with AMX)."""

LOADING, LOADING_ACROSS, LOADING_FAR = 8, 16, 21
"""Cycles to load a tile register: from L1, two cache lines at a time; the same where its rows cross lines; and from L2,
at 48 bytes a cycle (Intel's optimisation manual)."""

LOADING_ROWS = 56
"""The same if its rows are rows of positions of different channels, which several taps read, and which cross lines: by
such tiles 10 forwards with several taps took 16 cycles longer for each instruction than by others, those with one tap
did not (an Intel Xeon with AMX). Blocks of 2 x 2 tiles then take (8 + 56) / 2 = 32 cycles for each in place of 16."""


def shapes() -> Iterator[tuple[int, int]]:
    """All numbers (m, n) of tiles that a block may have."""
    numbers = range(1, 5)
    return ((m, n) for m in numbers for n in numbers if TileBlock(ROWS, m, n, ROWS).fits)


def even_rows(size: int, m: int) -> int:
    """The rows of tiles for which the fewest blocks of `m` tiles cover `size` with the least surplus."""
    return -(-size // (-(-size // (ROWS * m)) * m))


def cycles(m: int, n: int, loading_m: float, loading_n: float) -> float:
    """Cycles for each instruction of a block, if loading a tile of M, and of N, takes so many."""
    return max(MULTIPLYING, LATENCY / (m * n), loading_m / n + loading_n / m)


def keep(sch: Schedule, block: SBlockRV) -> SBlockRV:
    """Let a block keep its sums in tile registers. Returns the block that stores them."""
    stored = sch.cache_write(block, 0, "local")
    sch.set_scope(stored, 0, "local")
    return stored


def annotate(sch: Schedule, m: Sequence[LoopRV], rows: int) -> None:
    """Annotate a block's loops over M, which become one, for tiles of so many rows."""
    sch.annotate(sch.fuse(*m), TILES, rows)


def zero(sch: Schedule, zeroed: SBlockRV, rows: int) -> None:
    """Set sums to zero in tile registers: the block that TVM makes of it has no loop over M where M is a single row."""
    *_, m, n = sch.get_loops(zeroed)
    if TILES not in sch.get(m).annotations:
        annotate(sch, [sch.add_unit_loop(n)], rows)


def store(sch: Schedule, stored: SBlockRV, at: LoopRV, rows: int, m: Sequence[int], n: int) -> None:
    """Store a block's sums inside of the loop `at`, which adds up all of them; `m` and `n` say which of its loops are
    those over M and over N."""
    sch.reverse_compute_at(stored, at, preserve_unit_loops=True)
    loops = sch.get_loops(stored)
    of_m, of_n = [loops[number] for number in m], loops[n]
    others = [loop for loop in loops[min(*m, n) :] if loop not in (*of_m, of_n)]
    sch.reorder(*others, *of_m, of_n)
    annotate(sch, of_m, rows)
