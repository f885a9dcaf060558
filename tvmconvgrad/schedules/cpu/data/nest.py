"""The loop nest of a sum, as rule.py tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.cpu import blocks, tile_registers
from tvmconvgrad.schedules.cpu.blocks import LoopNest
from tvmconvgrad.schedules.cpu.data import masked
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.plan import DataPlan
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataTile
from tvmconvgrad.schedules.cpu.data.tile_registers import added_pairs, adds_taps
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.factors import inner_extents, largest_divisor
from tvmconvgrad.tir.annotations import PEEL, PIPELINED, PREFETCH_EACH, PREFETCH_READS


@dataclass(frozen=True)
class DataNest(LoopNest):
    """A sum's loops, and the block that writes its tile. The filter is packed inside of the loop over N blocks."""

    written: SBlockRV


def nest_sum(sch: Schedule, total: SBlockRV, rank: int, plan: DataPlan, access: DataAccess) -> DataNest:
    """Nest the loops as rule.py says, and write the tiles."""
    tile = plan.tile
    block, sums, written = _accumulators(sch, total, rank, plan, access.machine.lanes)
    stored = tile_registers.keep(sch, block) if tile.tile_rows else None
    for accumulator in [block, *sums, *([] if stored is None else [stored])]:
        sch.set_scope(accumulator, 0, "local")
        blocks.lanes_last(sch, accumulator, -rank - 2, tile.groups)
        blocks.lanes_last(sch, accumulator, -2, tile.positions if tile.vector_axis is DataAxis.M else 1)
    (image, g, *positions, n_channel), (*taps, k), lane = _loops(sch, block, rank, tile.vector_axis is DataAxis.K)
    block_loops = [taps.pop() for _ in sums]
    cache_blocks = [taps.pop()] if plan.k_cache_blocks > 1 else []
    g0, g1 = sch.split(g, [None, tile.groups])
    n_block, n_channel = sch.split(n_channel, [None, tile.n])
    outer, tile_rows, row = _split_positions(sch, positions, tile)
    k_loops, pair = _split_k(sch, taps, k, plan, access)
    reads_padding = plan.packs is Packs.IN_PLACE and access.leaves_out_padding
    peels = reads_padding or bool(plan.leaves_out_by_position)
    work_items, inside, n_block = _split_work_items(sch, [image, *outer], g0, n_block, plan, peels)
    if plan.packs is Packs.IN_PLACE and access.may_pipeline:
        inside = _pipeline(sch, inside, access)
    elif plan.packs is Packs.IN_PLACE and access.broadcasts_in_place:
        sch.annotate(inside[0], PIPELINED, 1)
    if plan.leaves_out_by_position:
        sch.unroll(k_loops[rank])  # the last axis' taps
    order = {DataAxis.M: [g1, n_channel, *tile_rows, row], DataAxis.K: [g1, row, n_channel, *lane]}
    register_tile = order.get(tile.vector_axis, [row, n_channel, g1])
    across, along = ([n_channel], row) if tile.has_channel_rows else ([*tile_rows, row], n_channel)
    if stored is not None:
        register_tile = [g1, *across, along, k_loops.pop()]
    sch.reorder(*work_items, *cache_blocks, *inside, *block_loops, *k_loops, *register_tile, *pair)
    if stored is not None and tile.tile_rows:
        tile_registers.annotate(sch, across, tile.tile_rows)
        m, n = ([-1], -2) if tile.has_channel_rows else (range(-1 - len(across), -1), -1)
        tile_registers.store(sch, stored, inside[-1], tile.tile_rows, m, n)
    elif access.masks_data:
        prefetches = plan.prefetch > 0
        masked.schedule_tile(sch, access.sizes, inside, k_loops, register_tile, access.machine.lanes, prefetches)
    else:
        vectors = blocks.vectorize_tile(sch, register_tile, access.machine.lanes, access.pairs)
        if vectors is not None and access.holds_rows:
            sch.reorder(vectors, row)
    for each, loop in zip(sums, block_loops):
        _add_blocks(sch, each, loop, rank, tile, access.machine.lanes)
    if tile.vector_axis is DataAxis.K:
        _add_lanes(sch, total, inside[-1])
    sch.reverse_compute_at(written, inside[-1], preserve_unit_loops=True)
    if plan.prefetch and not access.masks_data:
        sch.annotate(k_loops[0], PREFETCH_READS, 1)
        sch.annotate(row, PREFETCH_EACH, tile.rows * tile.positions)
        if reads_padding:  # a step reads at most so many rows, and positions, that the one before has not read
            for tap, axis in zip(k_loops[1:-1], access.sizes.sums[0].axes):
                sch.annotate(tap, PREFETCH_EACH, min(axis.stride, axis.taps))
    return DataNest(block, work_items, n_block, k_loops[0], written)


def _accumulators(
    sch: Schedule, total: SBlockRV, rank: int, plan: DataPlan, lanes: int
) -> tuple[SBlockRV, list[SBlockRV], SBlockRV]:
    """The block that adds up a tile; the one that adds up its summation blocks, if there are several; and the one that
    writes it: to the result, to a sum of cache blocks of K, or, if the lanes are summed, to the sum over these."""
    block = total
    if plan.tile.vector_axis is DataAxis.K:
        _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
        block = sch.rfactor(lane, rank + 3)
        sch.set_scope(total, 0, "local")
    if plan.k_cache_blocks > 1:
        cache_block, _ = sch.split(sch.get_loops(block)[-1], [plan.k_cache_blocks, None])
        block, written = sch.rfactor(cache_block, 0), total
    else:
        (written,) = sch.get_consumers(total)
    if not plan.summation_blocks:
        return block, [], written
    summation_block, _ = sch.split(sch.get_loops(block)[-1], [plan.summation_blocks, None])
    return sch.rfactor(summation_block, 0), [block], written


def _split_positions(
    sch: Schedule, positions: list[LoopRV], tile: DataTile
) -> tuple[list[LoopRV], list[LoopRV], LoopRV]:
    """The loops over tiles along each axis; of a tile, the loop over its rows, if it has several, and that over the
    positions of a row."""
    *outer, last = positions
    row0, row = sch.split(last, [None, tile.positions])
    rows = []
    if tile.rows > 1:
        outer[-1], inner_row = sch.split(outer[-1], [None, tile.rows])
        rows = [inner_row]
    return [*outer, row0], rows, row


def _split_k(
    sch: Schedule, taps: list[LoopRV], k: LoopRV, plan: DataPlan, access: DataAccess
) -> tuple[list[LoopRV], list[LoopRV]]:
    """The loops over K in their order: K blocks, taps, and the channels of a block, of which a few are unrolled. Those
    over a pair of channels that one instruction adds come apart."""
    if plan.tile.vector_axis is DataAxis.K:
        return [*taps, k], []
    block, run = sch.split(k, [None, plan.block_k])
    pair: list[LoopRV] = []
    if access.pairs:
        run, *pair = sch.split(run, [None, 2])
    if adds_taps(access):
        sch.reorder(block, *taps, run)
        taps[-1], run = sch.split(sch.fuse(taps[-1], run), [None, added_pairs(access)])
    k_loops = [block, *taps, run]
    steps = largest_divisor(blocks.extent(sch, run), access.steps)
    if steps > 1:
        k_loops[-1:] = sch.split(run, [None, steps])
        sch.unroll(k_loops[-1])
    return k_loops, pair


def _split_work_items(
    sch: Schedule, tiles: list[LoopRV], groups: LoopRV, n_blocks: LoopRV, plan: DataPlan, peels_rows: bool
) -> tuple[list[LoopRV], list[LoopRV], LoopRV]:
    """The loops over work items, those inside of one, over its group blocks, N blocks and M blocks, in their order, and
    the one over N blocks. If it `peels_rows`, the first and the last tile of a row come apart, so that all others meet
    no padding along it."""
    inner = inner_extents([blocks.extent(sch, loop) for loop in tiles], plan.partition_tiles)
    split = [sch.split(loop, [None, size]) for loop, size in zip(tiles, inner)]
    partitions, m_blocks = ([pieces[i] for pieces in split] for i in (0, 1))
    if peels_rows:
        sch.annotate(m_blocks[-1], PEEL, 1)
    group_partition, groups = sch.split(groups, [plan.group_partitions, None])
    n_partition, n_blocks = sch.split(
        n_blocks, [largest_divisor(blocks.extent(sch, n_blocks), plan.n_partitions), None]
    )
    work_items = [*partitions, group_partition, n_partition]
    if plan.inner_group_blocks and plan.inner_group_blocks > 1:
        groups, inner_groups = sch.split(groups, [None, plan.inner_group_blocks])
        return work_items, [groups, *m_blocks, inner_groups, n_blocks], n_blocks
    return work_items, [groups, n_blocks, *m_blocks], n_blocks


def _pipeline(sch: Schedule, inside: Sequence[LoopRV], access: DataAccess) -> list[LoopRV]:
    """The loops inside of a work item if data is prefetched while the tiles before are summed: all N blocks of a tile
    follow each other, so its data stays in L1, or in L2 if it has many channels."""
    groups, n_blocks, *m_blocks, last = inside
    together = largest_divisor(blocks.extent(sch, last), access.pipelined_tiles)
    last, tiles = sch.split(last, [None, together])
    sch.annotate(last, PIPELINED, 1)
    return [groups, *m_blocks, last, tiles, n_blocks]


def _loops(
    sch: Schedule, block: SBlockRV, rank: int, lanes_are_summed: bool
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """(n, g, *positions, N channel), (*taps, K channel), and the loop over lanes that was split from the latter, if
    any."""
    loops = sch.get_loops(block)
    spatial = rank + 3
    lane = [loops.pop()] if lanes_are_summed else []
    return loops[:spatial], loops[spatial:], lane


def _add_blocks(sch: Schedule, total: SBlockRV, at: LoopRV, rank: int, tile: DataTile, lanes: int) -> None:
    """Add the sums of a tile's summation block to those of the blocks before, which are on the stack."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    image, group, *middle, row, channel = sch.get_loops(total)[-(rank + 3) :]
    rows = [middle.pop()] if tile.rows > 1 else []
    order = [group, channel, *rows, row] if tile.vector_axis is DataAxis.M else [*rows, row, channel, group]
    sch.reorder(image, *middle, *order)
    blocks.vectorize_tile(sch, order, lanes)


def _add_lanes(sch: Schedule, total: SBlockRV, at: LoopRV) -> None:
    """Add up the lanes of a tile's vectors of sums."""
    sch.reverse_compute_at(total, at, preserve_unit_loops=True)
    *_, row, channel, lane = sch.get_loops(total)
    for loop in (row, channel, lane):
        sch.unroll(loop)
