"""The candidate blocks of weights gradients whose sums stay in AMX's tile registers.

A row of a tile is a channel c, and a column a channel o. K are positions along the last axis, in pairs of two images.
Of few channels c, the rows are the taps of one of them along the axis before the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tvmconvgrad.machines.cpu import BF16_BYTES, CACHE_LINE
from tvmconvgrad.schedules.cpu.tile_registers import (
    COLUMNS,
    LEAST_CHANNELS,
    LOADING,
    LOADING_ACROSS,
    ROWS,
    cycles,
    even_rows,
    shapes,
)
from tvmconvgrad.schedules.cpu.weights.access import WeightsAccess, WeightsAxis, WeightsTile
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import group_sizes

LEAST_POSITIONS = 4
"""With fewer pairs of positions an instruction on tiles adds up hardly more than those on vectors in its time. Half
changes no sum in bf16; with twice, 2 sums change, and take 1.72 times as long (benchmarks/constants.py)."""

CACHE_BLOCK, CACHE_BLOCK_OF_TAPS = 128, 1024
"""The number of pairs of positions in a cache block; the second one where rows of tiles are taps. Of 64, 128, 256 and
512 the first one was the fastest for five of ResNet-50's layers wherever their operands were packed, by 1.1 to 1.4
times beside 256. Of 128, 256, 512 and 1024 the last one was the fastest for four first layers of five, by 1.17 to 1.25
times beside 128 (an Intel Xeon with AMX)."""

TRANSPOSING, TRANSPOSING_PARTS = 1.2, 3.2
"""To transpose an element of x, in cycles besides packing it: whole cache lines, and parts of them. ResNet-50's 3x3
layer of 128 channels took 0.65 of the time, and its strided one 0.57, with x packed before all work items instead of by
two partitions of o and eight of c (an Intel Xeon with AMX)."""


def transposing(access: WeightsAccess, c_partitions: int = 1) -> float:
    """Cycles to transpose an element of x, if so many partitions of c each pack their channels."""
    if not access.tile.tile_rows or access.problem.data_format == "NCX":
        return 0.0
    c_group, _ = group_sizes(access.problem.geometry)
    return TRANSPOSING if BF16_BYTES * c_group >= CACHE_LINE * c_partitions else TRANSPOSING_PARTS


def may_use(access: WeightsAccess) -> bool:
    """Whether the inputs are bf16, and the sums have channels and positions to fill tile registers.

    Phases and image halves along the same axis, in 1-D with an odd number of images, are not taken.
    """
    geometry = access.problem.geometry
    fills = any(tiles(access.problem)) and positions(access.extents[-1]) >= LEAST_POSITIONS
    halves_phases = geometry.rank == 1 and geometry.batch % 2 == 1 and geometry.strides[0] > 1
    return access.pairs and fills and not halves_phases


def tiles(problem: Problem) -> Iterator[WeightsTile]:
    """All blocks of tile registers."""
    c_group, o_group = group_sizes(problem.geometry)
    one = (1,) * problem.geometry.rank
    if o_group < LEAST_CHANNELS:
        return
    if c_group >= LEAST_CHANNELS:
        for m, n in shapes():
            rows = even_rows(c_group, m)
            yield WeightsTile(one, m * rows, n * COLUMNS, 1, WeightsAxis.O, rows)
        return
    rows = problem.geometry.k[-2] if len(one) > 1 else 1
    if 1 < rows <= ROWS:
        taps = (*one[:-2], rows, 1)
        yield from (WeightsTile(taps, m, n * COLUMNS, 1, WeightsAxis.O, rows) for m, n in shapes() if c_group % m == 0)


def positions(extent: int) -> int:
    """The positions that an instruction adds up, of so many along the last axis, which are rounded up for that."""
    return largest_divisor(extent, ROWS)


def cycles_per_product(access: WeightsAccess) -> float:
    """Cycles of one core, about, for each product that the gradient has."""
    tile, last = access.tile, access.extents[-1]
    assert tile.tile_rows is not None
    each = cycles(tile.c * prod(tile.taps) // tile.tile_rows, tile.o // COLUMNS, LOADING_ACROSS, LOADING)
    surplus = max(last / access.problem.geometry.y[-1], 1.0)  # below 1: halves of a row, which is not rounded up
    return surplus * each / (2 * positions(last) * tile.tile_rows * COLUMNS)
