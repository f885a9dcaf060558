"""The epilogue of a data gradient or a forward: how tiles, or a scratch accumulator, are written to the result."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.plan import DataPlan
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataTile
from tvmconvgrad.tir.annotations import NON_TEMPORAL, PREFETCH_LINE, TRANSPOSE


def transpose_tile(sch: Schedule, result: SBlockRV, rank: int, tile: DataTile, data_format: str) -> None:
    """The loops that transpose a tile's vectors and write them along positions, or along a group's channels."""
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = (channel, group) if tile.vector_axis is DataAxis.GROUPS else (group, channel)
    along = row
    if data_format == "NXC":
        outer, along = row, channel
    sch.reorder(image, *middle, outer, lane, along)
    sch.unroll(outer)
    sch.annotate(lane, TRANSPOSE, 1)


def write_tile(sch: Schedule, result: SBlockRV, rank: int, plan: DataPlan, access: DataAccess) -> None:
    """The loops that write a tile along its vectors."""
    tile, lanes, by_rows, may_stage = plan.tile, access.machine.lanes, access.writes_rows, access.may_stage_results
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    if plan.non_temporal and not may_stage:
        sch.annotate(image, NON_TEMPORAL, 1)
    rows = [middle.pop()] if tile.rows > 1 else []
    written_tile = [group, channel, *rows, row] if tile.vector_axis is DataAxis.M else [row, channel, group]
    sch.reorder(image, *middle, *written_tile)
    if by_rows:
        *outer, vector = [loop for loop in written_tile if tile.vector_axis is DataAxis.M or loop is not group]
        for loop in outer:
            sch.unroll(loop)
        sch.annotate(vector, TRANSPOSE, 1)
        if access.masks_data:
            sch.annotate(vector, PREFETCH_LINE, max(access.sizes.line // access.result_stride, 1))
    else:
        blocks.vectorize_tile(sch, written_tile, lanes)


def convert_scratch(sch: Schedule, result: SBlockRV, at: LoopRV, rank: int, access: DataAccess) -> None:
    """Convert a work item's scratch accumulator to the result's type and order, after the last cache block of K."""
    sch.reverse_compute_at(result, at, preserve_unit_loops=True)
    image, group, *middle, row, channel = sch.get_loops(result)[-(rank + 3) :]
    outer, lane = sch.split(channel, [None, access.tile.n])
    if access.has_contiguous_vectors:
        blocks.vectorize_tile(sch, [lane], access.machine.lanes)
    else:
        sch.reorder(image, *middle, group, outer, lane, row)
        sch.annotate(lane, TRANSPOSE, 1)
