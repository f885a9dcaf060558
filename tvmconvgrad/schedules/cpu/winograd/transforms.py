"""How tensors are padded and transformed: schedule primitives that all of Winograd's rules use.

Along two axes a transformation has two stages (te/winograd). The first one is computed for one tile and one vector
of channels at a time, and stays in registers or L1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.packing.data import DataBlocks, pack_data
from tvmconvgrad.te.tensors import Index

AnyIndex = TypeVar("AnyIndex")


@dataclass(frozen=True)
class Data:
    """A stage `source` of data, and the stage `name` that transforms it along `tiled` axes and is stored by blocks of
    `channels`."""

    source: str
    name: str
    tiled: int
    channels: int
    shifted: int = 0
    """Along so many axes tiles begin from several neighbours."""

    def parts(self, index: Sequence[AnyIndex]) -> tuple[Sequence[AnyIndex], Sequence[AnyIndex], Sequence[AnyIndex]]:
        """f, the shifts, and (n, *tiles, channel) of an index or of loops."""
        shifts = self.tiled + self.shifted
        return index[: self.tiled], index[self.tiled : shifts], index[shifts:]

    def by_blocks(self, *index: Index) -> tuple[Index, ...]:
        """The storage index of (*f, *shifts, n, *tiles, channel): in the order in which a register tile reads it, with
        a block of channels for each tile."""
        f, shifts, (n, *tiles, channel) = self.parts(index)
        return (n, *shifts, *f, channel // self.channels, *tiles, channel % self.channels)


def transform_data(
    sch: Schedule, data: Data, data_format: str, lanes: int, at: LoopRV | None, in_parallel: bool = False
) -> None:
    """Pad data with zeros and transform it, with vectors over channels: all of it, or, inside of the loop `at`, what
    its body reads. With `in_parallel` the transformation has work items of its own, each of which pads what it
    transforms; otherwise it pads image by image."""
    block, source = sch.get_sblock(data.name), sch.get_sblock(data.source)
    count = len(sch.get_loops(block))
    blocks.transform_written(sch, block, data.by_blocks)
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    f, shifts, (n, *tiles, channel) = data.parts(sch.get_loops(block)[-count:])
    vectors = -(-data.channels // lanes)
    channel0, vector, lane = sch.split(channel, [None, vectors, data.channels // vectors])
    sch.reorder(n, channel0, *shifts, *tiles, vector, *f, lane)
    transform_tile(sch, data.name, vector, f, lane)
    place = sch.fuse(n, channel0) if in_parallel or at is None else n
    pack_data(sch, source, data_format, DataBlocks(data.channels), lanes, place)
    if in_parallel:
        sch.parallel(place)


def transform_tile(sch: Schedule, name: str, vector: LoopRV, within: Sequence[LoopRV], lane: LoopRV) -> None:
    """Transform a tile's vector, in the body of the loop `vector`: along the last axis by the stage that has the loops
    `within` and `lane`, along the axes before by the stages `name`_0, `name`_1, ..

    Loops over a tile are unrolled. Each element is then loaded once, and LLVM finds common subexpressions of the sums.
    """
    together(sch, within, lane)
    for axis in reversed(range(len(within) - 1)):
        stage = sch.get_sblock(f"{name}_{axis}")
        count = len(sch.get_loops(stage))
        sch.compute_at(stage, vector, preserve_unit_loops=True)
        sch.set_scope(stage, 0, "local")
        *loops, lane = sch.get_loops(stage)[-count:]
        row, rest = loops[axis], [*loops[:axis], *loops[axis + 1 : len(within)]]
        sch.reorder(*loops[len(within) :], *rest, row, lane)
        together(sch, [*rest, row], lane)


def together(sch: Schedule, within: Sequence[LoopRV], lane: LoopRV) -> None:
    """Vectorise the loop `lane` and unroll the loops `within` a tile."""
    for loop in within:
        sch.unroll(loop)
    sch.vectorize(lane)
