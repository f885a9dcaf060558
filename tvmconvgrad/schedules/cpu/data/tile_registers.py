"""The candidate blocks of data gradients and forward convolutions whose sums stay in AMX's tile registers.

A row of a tile is a position: tiles lie side by side in a row of positions, or in neighbouring rows of the image. Of
few channels an instruction adds up several taps: in packed data the channels of neighbouring positions are contiguous,
so those that a position's taps read are a run, and the runs of neighbouring positions overlap.

For NCX there are blocks whose rows are channels of the result and whose columns are positions, so that neither data nor
results are transposed: packing makes pairs of two rows of positions, and a tile is written row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.cpu.tile_registers import (
    COLUMNS,
    LOADING,
    LOADING_FAR,
    LOADING_ROWS,
    ROWS,
    even_rows,
    shapes,
)
from tvmconvgrad.schedules.cpu.tile_registers import cycles as instruction_cycles
from tvmconvgrad.schedules.expressions.plain import data_views
from tvmconvgrad.schedules.factors import divisors, largest_divisor
from tvmconvgrad.te.tensors import ceil_to

STORING = 0.15
"""Cycles for each element of a result, and for surplus channels, to store a tile and to load its rows again. A store
and a load of a row of 16 take about two cycles, 0.13 for each element. Without this tiles were taken for 3D U-Net's
classes (data) and U-Net's down1_1 (forward), which took 1.5 and 1.03 times as long as with vectors; with twice as much
vectors for 3D U-Net's down1_1 (forward), which took 1.25 times as long (an Intel Xeon with AMX)."""


def may_use(access: DataAccess) -> bool:
    """Whether the inputs are bf16, and the sums fill tile registers: a tile of the filter serves all positions of a
    block, and a tile of the data all its channels."""
    sizes = access.sizes
    fills = bool(sizes.sums) and not sizes.is_depthwise and any(tiles(sizes, access.tile.vector_axis))
    if not (access.pairs and fills and sizes.is_product_by_phases):
        return False
    gathered = data_views(sizes.problem, access.blocking(in_place=False))[-1].taps > 1
    if access.tile.has_channel_rows and gathered:
        return False  # neighbouring positions are not contiguous
    return added_pairs(access) > 1  # a single one leaves no loop over pairs, which tir/passes/tiles.py expects


def added_pairs(access: DataAccess) -> int:
    """How many pairs of products an instruction adds up: of the channels of a tap, or of several taps along the last
    axis if all that these read is contiguous."""
    sums, run = access.sizes.sums, access.block_k(access.data_in_place) // 2
    alone = access.data_in_place or access.tile.has_channel_rows
    if alone or any(abs(size.axes[-1].step) > 1 for size in sums):
        return run
    return largest_divisor(run * gcd(*(size.axes[-1].taps for size in sums)), ROWS)


def adds_taps(access: DataAccess) -> bool:
    """Whether an instruction adds up several taps along the last axis."""
    return bool(access.tile.tile_rows) and added_pairs(access) > access.block_k(access.data_in_place) // 2


def tiles(sizes: DataSizes, vector_axis: DataAxis) -> Iterator[DataTile]:
    """All blocks of tile registers: with vectors over positions rows are channels and columns positions, otherwise the
    other way round. Each has channels of one output phase."""
    if vector_axis is DataAxis.M:
        for m, n in shapes():
            rows = even_rows(sizes.n, m)
            if sizes.has_one_phase(m * rows):
                yield DataTile(n * COLUMNS, m * rows, 1, vector_axis, tile_rows=rows)
        return
    positions = sizes.positions(DataTile(1, COLUMNS, 1, DataAxis.N))
    height = gcd(*(each[-2] for each in positions)) if len(positions[0]) > 1 else 1
    for m, n in ((m, n) for m, n in shapes() if sizes.has_one_phase(n * COLUMNS)):
        for high in divisors(m):
            if height % high == 0:
                along = m // high
                rows = even_rows(max(each[-1] for each in positions), along)
                yield DataTile(along * rows, n * COLUMNS, 1, DataAxis.N, high, rows)


def cycles(access: DataAccess) -> float:
    """Cycles of one core, about, for the products, and to store the sums."""
    tile = access.tile
    assert tile.tile_rows is not None
    if tile.has_channel_rows:
        one_tap = all(size.products == access.sizes.k for size in access.sizes.sums)
        m, n, loading = tile.n // tile.tile_rows, tile.positions // COLUMNS, LOADING if one_tap else LOADING_ROWS
        each = instruction_cycles(m, n, LOADING, loading)
    else:
        m, n = tile.rows * tile.positions // tile.tile_rows, tile.n // COLUMNS
        near = access.bytes * access.panel <= access.machine.l1_blocks // 2
        each = instruction_cycles(m, n, LOADING, LOADING if near else LOADING_FAR)
    instructions = access.products / (2 * added_pairs(access) * tile.tile_rows * COLUMNS)
    surplus = max(ceil_to(size.n, tile.n) / size.n for size in access.sizes.sums)
    return each * instructions + STORING * surplus * prod(access.sizes.problem.output_shape)
