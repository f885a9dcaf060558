"""The loop nest of a sum, as rule.py tells it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.cpu import blocks, tile_registers
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.plan import DataPlan
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis
from tvmconvgrad.schedules.factors import inner_extents, largest_divisor
from tvmconvgrad.schedules.transforms.prefetch import EACH, PREFETCH_READS


@dataclass(frozen=True)
class Nest:
    """A sum's register tile, the block that writes it, and its loops: over work items, over the N blocks of a work
    item, and the outermost one over K."""

    block: SBlockRV
    written: SBlockRV
    work_items: list[LoopRV]
    column: LoopRV
    reduction: LoopRV


def nest_sum(sch: Schedule, total: SBlockRV, rank: int, plan: DataPlan, access: DataAccess) -> Nest:
    """Nest the loops as rule.py says, and write the tiles."""
    tile, block, lanes = plan.tile, total, access.machine.lanes
    if tile.vector_axis is DataAxis.K:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        block = sch.rfactor(lane, rank + 3)
        sch.set_scope(total, 0, "local")
    if plan.k_cache_blocks > 1:
        cache_block, _ = sch.split(sch.get_loops(block)[-1], [plan.k_cache_blocks, None])
        block, written = sch.rfactor(cache_block, 0), total
    else:
        (written,) = sch.get_consumers(total)
    stored = tile_registers.keep(sch, block) if tile.tile_rows else None
    sch.set_scope(block, 0, "local")
    blocks.lanes_last(sch, block, 1, tile.groups)
    blocks.lanes_last(sch, block, -2, tile.positions if tile.vector_axis is DataAxis.M else 1)
    (n, g, *positions, column), (*taps, summed), lane = _loops(sch, block, rank, tile.vector_axis is DataAxis.K)
    cache_blocks = [taps.pop()] if plan.k_cache_blocks > 1 else []
    g0, g1 = sch.split(g, [None, tile.groups])
    column0, column1 = sch.split(column, [None, tile.n])
    row0, row1 = sch.split(positions[-1], [None, tile.positions])
    outer, register_rows = positions[:-1], []
    if tile.rows > 1:
        outer[-1], inner_row = sch.split(outer[-1], [None, tile.rows])
        register_rows = [inner_row]
    summing, pair = [*taps, summed], []
    if tile.vector_axis is not DataAxis.K:
        block_of, run = sch.split(summed, [None, plan.block_k])
        summing = [block_of, *taps, run]
        if access.pairs:
            summing[-1], *pair = sch.split(run, [None, 2])
        steps = largest_divisor(blocks.extent(sch, summing[-1]), access.steps)
        if steps > 1:
            summing[-1:] = sch.split(summing[-1], [None, steps])
            sch.unroll(summing[-1])
    rows = [n, *outer, row0]
    inner = inner_extents([blocks.extent(sch, loop) for loop in rows], plan.partition_tiles)
    split = [sch.split(loop, [None, size]) for loop, size in zip(rows, inner)]
    partitions, rows = ([pieces[i] for pieces in split] for i in (0, 1))
    group_range, g0 = sch.split(g0, [plan.group_partitions, None])
    column_range, column0 = sch.split(column0, [largest_divisor(blocks.extent(sch, column0), plan.n_partitions), None])
    work_items = [*partitions, group_range, column_range]
    order = {DataAxis.M: [g1, column1, *register_rows, row1], DataAxis.K: [g1, row1, column1, *lane]}
    register_tile = order.get(tile.vector_axis, [row1, column1, g1])
    if stored is not None:
        register_tile = [g1, *register_rows, row1, column1, summing.pop()]
    inside = [g0, column0, *rows]
    if plan.inner_group_blocks and plan.inner_group_blocks > 1:
        g0, inner = sch.split(g0, [None, plan.inner_group_blocks])
        inside = [g0, *rows, inner, column0]
    sch.reorder(*work_items, *cache_blocks, *inside, *summing, *register_tile, *pair)
    if stored is not None and tile.tile_rows:
        row1 = tile_registers.annotate(sch, [*register_rows, row1], tile.tile_rows)
        tile_registers.store(sch, stored, rows[-1], tile.tile_rows, 1 + len(register_rows))
    else:
        blocks.vectorize_tile(sch, register_tile, lanes, access.pairs)
    if tile.vector_axis is DataAxis.K:
        _add_lanes(sch, total, rows[-1])
    sch.reverse_compute_at(written, inside[-1], preserve_unit_loops=True)
    if plan.prefetch:
        sch.annotate(summing[0], PREFETCH_READS, 1)
        sch.annotate(row1, EACH, tile.rows * tile.positions)
    return Nest(block, written, work_items, column0, summing[0])


def _loops(
    sch: Schedule, block: SBlockRV, rank: int, lanes_are_summed: bool
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """(n, g, *positions, N channel), (*taps, K channel), and the loop over lanes that was split from the latter, if
    any."""
    loops = sch.get_loops(block)
    spatial = rank + 3
    lane = [loops.pop()] if lanes_are_summed else []
    return loops[:spatial], loops[spatial:], lane


def _add_lanes(sch: Schedule, total: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a tile's vectors of sums."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    *_, row, column, lane = sch.get_loops(total)
    for loop in (row, column, lane):
        sch.unroll(loop)
