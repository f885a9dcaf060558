"""The candidate blocks of data gradients and forward convolutions whose sums stay in AMX's tile registers.

A row of a tile is a position: tiles lie side by side in a row of positions, or in neighbouring rows of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.cpu.tile_registers import (
    COLUMNS,
    LEAST_CHANNELS,
    LOADING,
    LOADING_FAR,
    even_rows,
    shapes,
)
from tvmconvgrad.schedules.cpu.tile_registers import cycles as instruction_cycles
from tvmconvgrad.schedules.factors import divisors


def may_use(access: DataAccess) -> bool:
    """Whether the inputs are bf16, and the sums have channels to fill tile registers.

    A tile of the filter serves all rows of the block, and a tile of the data all its columns.
    """
    sizes = access.sizes
    fills = sizes.k >= LEAST_CHANNELS and bool(sizes.sums) and sizes.has_one_phase(COLUMNS)
    return access.pairs and fills and sizes.is_product


def tiles(sizes: DataSizes) -> Iterator[DataTile]:
    """All blocks of tile registers. Each has channels of one output phase, which are contiguous in the result."""
    positions = sizes.positions(DataTile(1, COLUMNS, 1, DataAxis.N))
    height = gcd(*(each[-2] for each in positions)) if len(positions[0]) > 1 else 1
    for m, n in ((m, n) for m, n in shapes() if sizes.has_one_phase(n * COLUMNS)):
        for high in divisors(m):
            if height % high == 0:
                along = m // high
                rows = even_rows(max(each[-1] for each in positions), along)
                yield DataTile(along * rows, n * COLUMNS, 1, DataAxis.N, high, rows)


def cycles(access: DataAccess) -> float:
    """Cycles of one core, about, for the products."""
    tile = access.tile
    assert tile.tile_rows is not None
    m, n = tile.rows * tile.positions // tile.tile_rows, tile.n // COLUMNS
    near = access.bytes * access.panel <= access.machine.l1_blocks // 2
    each = instruction_cycles(m, n, LOADING, LOADING if near else LOADING_FAR)
    return access.products / (tile.tile_rows * COLUMNS * access.block_k(access.data_in_place)) * each
