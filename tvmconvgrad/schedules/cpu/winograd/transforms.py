"""How the data is padded and transformed: schedule primitives that both of Winograd's rules use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class Data:
    """A stage `source` of data, and the stage `name` that transforms it along `tiled` axes and is stored by blocks of
    `channels`."""

    source: str
    name: str
    tiled: int
    channels: int

    def by_blocks(self, *index: Index) -> tuple[Index, ...]:
        """The storage index of (n, *f, channel, *tiles): in the order in which a register tile reads it, with a block
        of channels for each tile."""
        *outer, channel = index[: 2 + self.tiled]
        return (*outer, channel // self.channels, *index[2 + self.tiled :], channel % self.channels)


def transform_data(
    sch: Schedule, data: Data, data_format: str, lanes: int, at: LoopRV | None, in_parallel: bool = False
) -> None:
    """Pad data with zeros and transform it, with vectors over channels: all of it, or, inside of the loop `at`, what
    its body reads. With `in_parallel` the transformation has work items of its own, each of which pads what it
    transforms."""
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
    """Vectorise the loop `lane` and unroll the loops `within` a tile. Each element is then loaded once, and LLVM finds
    the common subexpressions of the sums."""
    for loop in within:
        sch.unroll(loop)
    sch.vectorize(lane)
