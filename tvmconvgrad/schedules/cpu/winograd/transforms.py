"""Rewrites that the schedules of Winograd's algorithm share: how data is transformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class Data:
    """A stage of data, and one that transforms it along `tiled` axes; stored by blocks of so many channels."""

    source: str
    name: str
    tiled: int
    channels: int

    def by_blocks(self, *index: Index) -> tuple[Index, ...]:
        """Where (n, *f, channel, *tiles) lies: as a register tile reads it, a block of channels for each tile."""
        *outer, channel = index[: 2 + self.tiled]
        return (*outer, channel // self.channels, *index[2 + self.tiled :], channel % self.channels)


def transform_data(
    sch: Schedule, data: Data, data_format: str, lanes: int, at: LoopRV | None, in_parallel: bool = False
) -> None:
    """Extend data by zeros, and transform it by vectors over channels: all of it, or inside of the loop `at` what its
    body reads. Where it is done `in_parallel`, each work item extends what it transforms."""
    block, source = sch.get_sblock(data.name), sch.get_sblock(data.source)
    count = len(sch.get_loops(block))
    blocks.transform_written(sch, block, data.by_blocks)
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    n, *rest = sch.get_loops(block)[-count:]
    f, channel, tiles = rest[: data.tiled], rest[data.tiled], rest[data.tiled + 1 :]
    vectors = -(-data.channels // lanes)
    channel0, vector, lane = sch.split(channel, [None, vectors, data.channels // vectors])
    sch.reorder(n, channel0, *tiles, vector, *f, lane)
    together(sch, f, lane)
    place = sch.fuse(n, channel0) if in_parallel or at is None else at
    blocks.pack_data(sch, source, data_format, data.channels, 1, lanes, place)
    if in_parallel:
        sch.parallel(place)


def together(sch: Schedule, within: Sequence[LoopRV], lane: LoopRV) -> None:
    """Unroll the loops within a tile around a vector: then each element is loaded once, and LLVM finds what sums have
    in common."""
    for loop in within:
        sch.unroll(loop)
    sch.vectorize(lane)
