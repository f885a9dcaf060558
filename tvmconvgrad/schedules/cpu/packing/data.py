"""Packing data by blocks of channels: all of it before the work items, or by each what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tvm import DataType
from tvm.ir import Call
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm.tirx import Buffer, IntImm, Var

from tvmconvgrad.schedules.cpu.blocks import extent, transform_written, vectorize
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.annotations import PREFETCH, PREFETCH_FAR, TRANSPOSE
from tvmconvgrad.tir.passes.limits import LEAST_SIDE
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes, replaced

AHEAD = 1024
"""Prefetch distance, in elements, of data that is packed along memory. With half of it 47 sums change, and take 0.99
times as long; with twice, 48 and 0.98 (benchmarks/constants.py)."""

TOGETHER = 64
"""At most so many positions of a row are packed by one work item: a problem whose images were merged into one row has
no other loop to split. With half of it 9 sums change, and take 0.97 times as long; with twice, 7 and 0.99
(benchmarks/constants.py)."""

CONTIGUOUS = 256
"""At most so many positions are packed by one work item if they are contiguous. With half of it 13 sums change, and
take 0.99 times as long; with twice, 8 and 0.99 (benchmarks/constants.py)."""

PANEL_ALIGNMENT = (128, 64)
"""Alignment and offset, in bytes, of the distance between packed blocks of channels. The distance is thereby an odd
number of cache lines, so the same position of different blocks maps to different sets of the cache."""


@dataclass(frozen=True)
class DataBlocks:
    """What of a data operand is packed together: so many channels of so many groups. Innermost are several `images` at
    one channel, or a `run` of a group's channels, as bf16 dot products need them."""

    channels: int
    groups: int = 1
    images: int = 1
    run: int = 1

    def place(self, n: Index, g: Index, c: Index, *space: Index) -> tuple[Index, ...]:
        """Where an element is packed."""
        outer = n // self.images, g // self.groups, c // self.channels, *space, c % self.channels // self.run
        return (*outer, g % self.groups, c % self.run if self.run > 1 else n % self.images)


class _DataLoops(NamedTuple):
    """The loops over what is packed: over blocks (0), and within one (1)."""

    n: LoopRV
    image: LoopRV
    g0: LoopRV
    g1: LoopRV
    c0: LoopRV
    c1: LoopRV
    space: list[LoopRV]


def pack_data(
    sch: Schedule,
    block: SBlockRV,
    data_format: str,
    packed: DataBlocks,
    lanes: int,
    at: LoopRV | None = None,
    ahead: int = 0,
) -> None:
    """Pack a data operand by blocks of channels and groups: all of it in parallel, or inside of the loop `at`.

    (n, g, c, *space) becomes (n, g // groups, c // channels, *space, c % channels, g % groups), so a tile reads one
    short contiguous run for each position. In the user's layout these runs may lie a power of two apart and then share
    few sets of the cache. Inside of a loop only what the loop's body reads is packed, so it stays in the cache. In NXC
    the source is prefetched: `ahead` elements ahead into L2, or, with 0, `AHEAD` elements into L1. `lanes` are the f32
    elements of a vector register.
    """
    rank = len(sch.get_loops(block)) - 3
    transform_written(sch, block, packed.place)
    sch.storage_align(block, 0, 2, *(size // _bytes(sch.get(block).writes[0].source) for size in PANEL_ALIGNMENT))
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    n, g, c, *space = sch.get_loops(block)[-(3 + rank) :]
    n, image = sch.split(n, [None, packed.images])
    g0, g1 = sch.split(g, [None, packed.groups])
    c0, c1 = sch.split(c, [None, packed.channels])
    loops = _DataLoops(n, image, g0, g1, c0, c1, space)
    if data_format == "NCX":
        outer = _pack_rows(sch, block, packed, loops, lanes, at is None)
    else:
        row = space[-1]
        outer = [loops.n, *space[:-1]]
        if at is None:
            work_item, row = sch.split(row, [None, largest_divisor(extent(sch, row), TOGETHER)])
            outer.append(work_item)
        if packed.channels * packed.groups > 1:
            _pack_channels(sch, block, packed, loops, outer, row, lanes, ahead)
        else:
            sch.reorder(*outer, loops.g0, loops.c0, row, loops.image, loops.c1, loops.g1)
            sch.fuse(row, loops.image)  # contiguous in the copy
            sch.annotate(loops.c0, TRANSPOSE, 1)
    if at is None:
        sch.parallel(sch.fuse(*outer))


def _pack_channels(
    sch: Schedule,
    block: SBlockRV,
    packed: DataBlocks,
    loops: _DataLoops,
    outer: list[LoopRV],
    row: LoopRV,
    lanes: int,
    ahead: int,
) -> None:
    """The loops over NXC: position by position, along channels; or along a whole row, if all its channels are packed
    together, and are less than a vector."""
    _, image, g0, g1, c0, c1, _ = loops
    channels, groups, all_channels = packed.channels, packed.groups, int(_source(sch, block).shape[-1])
    if groups == 1 and channels == all_channels < lanes:
        sch.reorder(*outer, g0, c0, row, c1, image, g1)
        sch.annotate(sch.fuse(row, c1), TRANSPOSE, 1)
        sch.annotate(c0, *((PREFETCH_FAR, ahead) if ahead else (PREFETCH, AHEAD)))
        return
    read = prod(_first_extent(sch, loop) for loop in (g0, g1, c0, c1))
    sch.reorder(*outer, row, g0, c0, c1, image, g1)
    if packed.images > 1:
        sch.annotate(c1, TRANSPOSE, 1)
    elif groups > 1 and packed.run > 1:
        c1, pair = sch.split(sch.fuse(c0, c1), [None, packed.run])
        sch.reorder(c1, image, g1, pair)
        sch.annotate(c1, TRANSPOSE, 1)
    elif groups > 1 and _first_extent(sch, c0) * channels >= LEAST_SIDE:
        sch.annotate(sch.fuse(c0, c1), TRANSPOSE, 1)  # all channels: a block of few would be copied one by one
    elif groups == 1 and channels >= LEAST_SIDE:
        sch.annotate(c1, TRANSPOSE, 1)  # a row, whose last channels may be pads
    elif _first_extent(sch, c0) * channels == 1 and all_channels % groups:
        sch.annotate(g1, TRANSPOSE, 1)  # the same, of groups of one channel
    else:
        vectorize(sch, g1 if groups > 1 else c1)
    if ahead:
        sch.annotate(row, PREFETCH_FAR, ahead)
    else:
        _prefetch(sch, block, row, read)


def _pack_rows(
    sch: Schedule, block: SBlockRV, packed: DataBlocks, loops: _DataLoops, lanes: int, in_parallel: bool
) -> list[LoopRV]:
    """The loops over NCX: block by block, along rows. Returns the outer ones."""
    n, image, g0, g1, c0, c1, space = loops
    is_one_run = _is_contiguous(sch, block, space)
    if is_one_run:
        fused = sch.fuse(*space)
        space = list(sch.split(fused, [None, largest_divisor(extent(sch, fused), CONTIGUOUS)]))
    *rows, row = space
    outer = [n, g0, c0, *rows]
    if packed.groups == 1:
        sch.reorder(*outer, row, c1, image, g1)
    elif in_parallel:
        sch.reorder(*outer, c1, row, image, g1)
    else:  # one channel of all groups after the other: the core's prefetcher follows so many rows, and no more
        sch.reorder(n, g0, c0, c1, *rows, row, image, g1)
    if packed.images > 1:
        sch.fuse(c1, image)
    if packed.channels * packed.groups * packed.images > 1 or not is_one_run or extent(sch, row) % lanes:
        sch.annotate(row, TRANSPOSE, 1)  # rows, of which some may be pads, or of any length
    else:
        _, vector = sch.split(row, [None, lanes])
        vectorize(sch, vector)
    return outer


def _is_contiguous(sch: Schedule, block: SBlockRV, space: Sequence[LoopRV]) -> bool:
    """Whether the positions of a channel that a block packs are contiguous in memory: whole rows without padding."""
    if not sch.get(block).reads:
        return False  # all of it is pads
    source = sch.get(block).reads[0].source.shape[-len(space) :]
    extents = [sch.get(loop).extent for loop in space]  # of which some may differ from work item to work item
    whole = all(isinstance(size, IntImm) for size in extents) and list(map(int, extents[1:])) == list(
        map(int, source[1:])
    )
    guards = [call for call in nodes(sch.get(block).body, Call) if call.op.same_as(IF_THEN_ELSE)]
    return len(space) > 1 and whole and not guards


def _source(sch: Schedule, block: SBlockRV) -> Buffer:
    """The user's tensor that a block packs."""
    return sch.get(block).reads[0].source


def _bytes(buffer: Buffer) -> int:
    """Bytes of an element."""
    return int(DataType(str(buffer.dtype)).bits) // 8


def _prefetch(sch: Schedule, block: SBlockRV, positions: LoopRV, read: int) -> None:
    """Prefetch in a loop over positions what lies about `AHEAD` elements later, in whole positions; the loop's body
    reads `read` elements of each position."""
    channels = int(_source(sch, block).shape[-1])
    sch.annotate(positions, PREFETCH, -(-AHEAD // read) * channels)


def _first_extent(sch: Schedule, loop: LoopRV) -> int:
    """A loop's extent; if it differs between work items, that of the first one."""
    found = sch.get(loop).extent
    begin = {var: IntImm("int64", 0) for var in nodes(found, Var)}
    return int(Analyzer().simplify(replaced(found, begin)))
