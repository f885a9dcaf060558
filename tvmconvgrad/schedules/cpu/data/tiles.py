"""The candidate register tiles of data gradients and forward convolutions, and the cost of each; the cheapest is
chosen.

A large tile loads fewer operands for each FMA. But a tile that does not divide the sizes computes surplus elements, and
a large one reads only padding at fewer taps, so fewer are left out. The vectorised axis decides what must be packed
before, and transposed after.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import (
    ADDING_CACHE_BLOCKS,
    ADDING_LANES,
    ALONE,
    ALONG_POSITIONS,
    BORDERED,
    BROADCASTING,
    CUT_LINES,
    DISPERSING,
    FAR_CHANNELS,
    FAR_PANEL,
    FROM_L2,
    IN_PLACE,
    K_VECTORS,
    K_VECTORS_FAR,
    NON_TEMPORAL,
    PACKING,
    PACKING_POSITIONS,
    PANELS,
    PREFETCHED,
    SCATTERING,
    STRIDED_STORES,
    TRANSPOSING,
    WRITE_BACK,
    WRITING_POSITIONS,
)
from tvmconvgrad.schedules.cpu.data import masked, tile_registers
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.cpu.micro_kernel import (
    ENOUGH_IF_SHORT,
    channel_widths,
    fits_registers,
    tile_efficiency,
    vector_widths,
)
from tvmconvgrad.schedules.expressions.plain import data_is_plain
from tvmconvgrad.schedules.factors import divisors
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.tir.passes.limits import LEAST_SIDE

ENOUGH, ENOUGH_OVER_K = 11.7, 10
"""So many sums keep the FMA units busy (`tile_efficiency`). OVER_K: with vectors over K a 3 x 3 tile, of 9 sums, was
1.2 to 1.9 times as fast as 12 x 1. With half of 11.7 5 sums change, and take 1.6 times as long; with twice, 1 and 1.04;
OVER_K changes none (benchmarks/constants.py, an AMD EPYC with Zen 4)."""


FEW_OPERATIONS, STORE = 16, 2
"""A tile of at most so many FMAs and stores is written while the next one is computed, which hides its stores: each
takes as long as two FMAs. 3D U-Net's classes (data), of three products, took 0.75 of the time in tiles of 2 x 2 vectors
instead of 8 x 2 (an AMD EPYC with Zen 4)."""


def tiles(machine: CpuMachine, vector_axis: DataAxis, sizes: DataSizes) -> list[DataTile]:
    """All tiles with vectors over `vector_axis`, unfiltered; `cost` is infinite for tiles that spill."""
    registers = machine.registers
    n_channels = {size.n for size in sizes.sums} or {sizes.n}
    few = sorted({d for count in n_channels for d in divisors(count) if d <= registers})
    shapes: list[tuple[int, ...]]
    if vector_axis is DataAxis.GROUPS:
        lines = [sizes.line] if sizes.has_large_output(machine.l3) else []
        widths = sorted({*vector_widths(machine), *lines})
        shapes = [(m, n, w) for m in range(1, registers) for n in few for w in widths]
    elif vector_axis is DataAxis.K:
        fitting = [n for n in few if all(count % n == 0 for count in n_channels)]
        shapes = [(m, n, 1) for m in range(1, registers) for n in fitting]
    elif vector_axis is DataAxis.M:
        vectors = [(w * m, m) for m in range(1, registers) for w in vector_widths(machine)]
        sums = {n: sizes.positions(DataTile(1, n, 1, vector_axis)) for n in few}
        rows = {(n, w): _rows(machine, sizes, w, sums[n]) for w, _ in vectors for n in few}
        shapes = [(w, n, 1, r) for w, m in vectors for n in few for r in rows[n, w] if m * n * r < registers]
    else:
        shapes = [(m, n, 1) for m in range(1, registers) for n in channel_widths(machine)]
    return [DataTile(m, n, groups, vector_axis, *more) for m, n, groups, *more in dict.fromkeys(shapes)]


def _rows(machine: CpuMachine, sizes: DataSizes, width: int, sums: Sequence[Sequence[int]]) -> Sequence[int]:
    """The numbers of rows that a tile of `width` positions may have: more than one only if the tile has whole rows, so
    memory is read and written row after row, or if data is prefetched and results are contiguous: those of
    MobileNetV2's block2_depthwise (data), which are not, took 1.3 times as long in parts of rows (an AMD EPYC with
    Zen 5). They divide the rows of all `sums`, given by their positions."""
    in_order = sums and all(width >= positions[-1] for positions in sums)
    if masked.reads_in_place(machine, sizes):
        in_order = in_order or sizes.problem.gradient is Gradient.FORWARD or sizes.problem.geometry.strides[-1] == 1
    if sizes.problem.data_format != "NCX" or sizes.problem.geometry.rank == 1 or not in_order:
        return [1]
    return divisors(gcd(*(positions[-2] for positions in sums)))


def cost(access: DataAccess) -> float:
    """Cycles of one core, about, with a tile: for the products, for packing data and filter, and for writing the
    result. Infinite if the tile's sums don't stay in registers."""
    problem = access.sizes.problem
    products = multiplying(access)
    if products == inf:
        return inf
    data, weights = problem.input_shapes
    packing = _packing(access)
    panels = 0.0 if access.filter_in_place else _packing_filter(access)
    moving = packing * prod(data) + panels * prod(weights) + _epilogue(access) * prod(problem.output_shape)
    return products + moving


def packing_again(access: DataAccess, times: float) -> float:
    """Cycles of one core, about, which `cost` lacks if data is packed so many `times`. They count where the cost of
    packing was measured on layers that pack each element once; and for rows of tile registers, where products take
    little time: so ten sums of the suites and of other_networks.json changed, and took 0.86 of the time in the mean,
    Inception's inception_1x7 0.55 (bf16, NCX, an Intel Xeon with AMX). Other costs are of layers that pack some again.
    """
    if access.data_in_place or not (_packs_positions(access) or access.tile.has_channel_rows):
        return 0.0
    return (times - 1) * _packing(access) * prod(access.sizes.problem.input_shapes[0])


def _packs_positions(access: DataAccess) -> bool:
    """Whether data in NCX is transposed for vectors over channels."""
    return access.tile.vector_axis is DataAxis.N and not access.has_contiguous_vectors


def multiplying(access: DataAccess) -> float:
    """Cycles of one core, about, for the products; infinite if the tile's sums don't stay in registers."""
    if access.tile.tile_rows:
        return tile_registers.cycles(access)
    efficiency = _efficiency(access)
    at_a_time = access.machine.products(access.pairs)
    return access.products / (at_a_time * efficiency) if efficiency else inf


def _efficiency(access: DataAccess) -> float:
    """The share of peak FLOPs that a tile may reach; 0 if it spills."""
    machine, tile = access.machine, access.tile
    rows, columns, used = tile.vectors(machine.lanes)
    if not fits_registers(machine, rows, columns) and not access.holds_rows:
        return 0.0
    if tile.vector_axis is DataAxis.GROUPS:
        # Each sum has its own data, which LLVM keeps in registers for the next tap if K is one channel.
        fits = rows * (columns + 1) < machine.registers
        loading = PANELS if access.sizes.k == 1 else IN_PLACE
        return tile_efficiency(machine, rows, columns, used, loading, ENOUGH_IF_SHORT) if fits else 0.0
    if access.masks_data:
        return masked.efficiency(machine, access.sizes, tile)
    if tile.vector_axis is DataAxis.M and access.sizes.is_depthwise:
        # The same; and taps in three rows read different data, which must fit the registers together.
        fits = 3 * rows * columns < machine.registers
        return tile_efficiency(machine, rows, columns, used, ALONE, ENOUGH_IF_SHORT) if fits else 0.0
    enough = ENOUGH_OVER_K if tile.vector_axis is DataAxis.K else ENOUGH
    found = tile_efficiency(machine, rows, columns, used, _loading(access), enough, may_hold_rows=access.holds_rows)
    if access.may_pipeline and access.data_in_place and not access.data_fits_l1:
        return min(found, FROM_L2 * machine.l2_bytes_per_cycle / access.vector_rate(rows))
    return found


def _panel_is_far(access: DataAccess) -> bool:
    """Whether a panel is too large for L2 and K cannot have several cache blocks."""
    return access.tile.vector_axis is DataAxis.N and not access.may_block_k and access.k_cache_blocks > 1


def _loading(access: DataAccess) -> tuple[float, float]:
    """What loading a row's and a column's operand costs, in FMAs."""
    if access.tile.vector_axis is DataAxis.K:
        within = 1 - access.machine.lanes * F32_BYTES / CACHE_LINE  # the share of vectors that cross no cache line
        vector = K_VECTORS if access.filter_fits_half_l2 else K_VECTORS_FAR
        each = vector * (1 - within / 2) * access.machine.vector_parts
        return each, each
    if access.tile.vector_axis is DataAxis.M:
        in_place = PREFETCHED if access.may_pipeline else FAR_CHANNELS
        row, column = in_place if access.data_in_place else ALONG_POSITIONS
    else:
        row, column = IN_PLACE if access.data_in_place and not access.broadcasts_in_place else PANELS
        column = FAR_PANEL if _panel_is_far(access) else column
    by_element = access.machine.by_element and access.steps > 1
    return row if access.machine.broadcasts or by_element else row + BROADCASTING, column


def _packing(access: DataAccess) -> float:
    """Cycles for each element to pack the data; for rows of bf16 pairs half as many as for rows of f32."""
    sizes, tile = access.sizes, access.tile
    if _packs_positions(access):
        return PACKING_POSITIONS  # also counted where they are broadcast in place
    if access.data_in_place:
        return 0.0
    if not access.has_contiguous_vectors or (tile.vector_axis is DataAxis.GROUPS and sizes.k > 1):
        return TRANSPOSING
    if tile.vector_axis is not DataAxis.M or sizes.is_depthwise:
        return PACKING
    row = PACKING if data_is_plain(sizes.problem, sizes.blocking(tile, 1)) else BORDERED
    return row * access.bytes / F32_BYTES


def _transposing(access: DataAccess) -> float:
    """Cycles for each element to transpose results to NCX, in blocks with a power of two of the tile's positions: the
    last blocks of a tile overlap, and small ones fill no vector. Those of a row's last tile, if it has surplus
    positions, are halves (tir/passes/transposition/parts.py). Cache blocks of K are added up first, and then transposed
    by whole rows."""
    tile = access.tile
    if tile.vector_axis is not DataAxis.N:
        return TRANSPOSING
    k_cache_blocks = access.k_cache_blocks if access.may_block_k else 1
    row = max((size.positions[-1] for size in access.sizes.sums), default=tile.positions)
    positions = tile.positions if k_cache_blocks == 1 else row
    adding = ADDING_CACHE_BLOCKS * k_cache_blocks if k_cache_blocks > 1 else 0.0
    cut = CUT_LINES if positions * F32_BYTES % CACHE_LINE else 0.0
    whole, rest = divmod(row, positions)
    halves = [1 << bit for bit in range(rest.bit_length()) if rest >> bit & 1]
    parts = [(whole * positions, positions), *((half, half) for half in halves)]
    moving = sum(count * _transposing_part(part, access.machine.lanes) for count, part in parts) / row
    return adding + cut + WRITE_BACK + moving


def _transposing_part(positions: int, lanes: int) -> float:
    """Cycles for each element of a part with so many positions, beside its `WRITE_BACK`."""
    side = min(1 << positions.bit_length() - 1, lanes)
    if side < LEAST_SIDE:
        return DISPERSING
    return WRITING_POSITIONS * ceil_to(positions, side) / positions * lanes / side


def _packing_filter(access: DataAccess) -> float:
    """Cycles for each element to pack the filter into panels."""
    sizes = access.sizes
    along = access.tile.vector_axis is DataAxis.N and sizes.problem.filter_axes.endswith(sizes.n_axis)
    return PACKING if along else TRANSPOSING


def _epilogue(access: DataAccess) -> float:
    """Cycles for each element to write the result."""
    if access.tile.vector_axis is DataAxis.K:
        return WRITE_BACK + ADDING_LANES * access.machine.lanes
    if access.transposes_result and access.has_contiguous_vectors:
        return TRANSPOSING if access.tile.n % access.sizes.n == 0 else SCATTERING
    transposes_scratch = access.may_block_k and not access.has_contiguous_vectors and access.k_cache_blocks > 1
    if access.transposes_result or transposes_scratch:
        spreading = STRIDED_STORES if access.machine.masked_stores else DISPERSING
        return spreading if access.result_stride > 1 else _transposing(access)
    by_groups = access.tile.vector_axis is DataAxis.GROUPS and access.sizes.n > 1
    if by_groups or not (access.has_contiguous_vectors or access.tile.vector_axis is DataAxis.M):
        return DISPERSING
    if access.stores_non_temporally and not access.may_stage_results:
        return NON_TEMPORAL
    if not (access.has_contiguous_vectors and access.writes_whole_lines):
        return SCATTERING
    return WRITE_BACK - (_hidden_stores(access) if access.panel else 0.0)


def _hidden_stores(access: DataAccess) -> float:
    """Cycles for each element that stores of small tiles do not take, since their sums are short."""
    rows, columns, _ = access.tile.vectors(access.machine.lanes)
    operations = rows * columns * (1 + max((size.products for size in access.sizes.sums), default=1))
    return STORE / access.machine.fmas / access.machine.lanes * min(1.0, FEW_OPERATIONS / operations)
