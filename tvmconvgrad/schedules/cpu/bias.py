"""The bias gradient on CPUs, in the call that computes another gradient.

Loop nest. In NXC vectors lie over channels, in NCX over positions:

    parallel split of images and positions:
      for position, channel: partial[split, channel] += dy[position, channel]     # NXC
    parallel channel, split of images:
      for image, vector of positions: partial[split, channel] += dy[image, channel, vector]     # NCX
    bias_delta = sum over splits                  # in a fixed order: the bits don't depend on the threads

Why it is fast. Each element is read once, along memory, and a fixed number of splits gives work items for many threads.
Where a weights gradient in NXC splits dy into work items and cache blocks, the bias is split like it, and summed beside
it (transforms/bias_fusion.py): dy is then read from memory once for both.

Not done: the sum is not taken while dy is packed, or from a register tile that has it. That would save loads from L2,
but each rule packs in its own way, and several tiles have the same part of dy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.te import Expression
from tvmconvgrad.te.bias import SUM
from tvmconvgrad.tir.rewriting import nodes

WORK_ITEMS = 16
"""The most splits of the sum: as many as work items of a weights gradient. With the bias gradient, every seventh
weights gradient of the suites took 1.03 times as long as alone, and with 8 or 32 splits the same; data gradients 1.04
times, with 8 splits 1.04 and with 32 1.03 (benchmarks/epilogue.py --every 7 all, an AMD EPYC with Zen 4)."""

LANES = 16
"""Elements of a vector, f32: a cache line, which LLVM splits where registers are shorter."""

TOGETHER = 8
"""At most so many positions are added to a channel's sum while that is in a register. With 4 and with 16 gradients took
as long (the same command as WORK_ITEMS')."""


@dataclass(frozen=True)
class CacheBlocks:
    """How a weights gradient is split, so that the bias gradient can be summed beside it."""

    size: tuple[int, ...]
    """Images and positions of a cache block."""
    split_k: int
    partitions: int
    """Of the channels of dy."""


def schedule_zeros_and_bias(sch: Schedule, expression: Expression, fused: CacheBlocks | None = None) -> None:
    """Schedule what an expression has beside its sums: stages of zeros, and the bias gradient. With `fused` the
    latter can be fused with a weights gradient in NXC that is split like this.

    Rows of zeros are filled in parallel. LLVM turns a row into a memset; vectorising it would fail, since TVM has no
    vector of bf16 zeros.
    """
    for name in expression.zeros:
        *outer, _ = sch.get_loops(sch.get_sblock(name))
        sch.parallel(sch.fuse(*outer))
    for result in expression.bias:
        total = sch.get_sblock(SUM)
        if fused is not None:
            _sum_by_cache_blocks(sch, total, fused)
        elif _has_channels_last(sch, total):
            _sum_channels_last(sch, total)
        else:
            _sum_channels_first(sch, total)
        for block in (total, sch.get_sblock(result.op.name)):
            channel, *splits = sch.get_loops(block)
            vectors, lane = _by_vectors(sch, channel)
            sch.reorder(vectors, *splits, lane)
            blocks.vectorize(sch, lane)


def _has_channels_last(sch: Schedule, total: SBlockRV) -> bool:
    """Whether the channels of dy are contiguous in memory."""
    block = sch.get(total)
    (load,) = [load for load in nodes(block.body, TensorLoad) if not load.source.same_as(block.writes[0].source)]
    return bool(load.indices[-1].same_as(block.iter_vars[0].var))


def _sum_by_cache_blocks(sch: Schedule, total: SBlockRV, fused: CacheBlocks) -> None:
    """Partial sums with vectors over channels, by the work items and the cache blocks of a weights gradient."""
    _, *positions = sch.get_loops(total)
    split, _ = sch.split(blocks.split_cache_blocks(sch, positions, fused.size), [fused.split_k, None])
    partial = sch.rfactor(split, 0)
    channel, split, cache_block, *positions = sch.get_loops(partial)
    partition, channel = sch.split(channel, [fused.partitions, None])
    sch.reorder(split, partition, cache_block, *positions, channel)
    _add_rows(sch, positions, channel)
    sch.parallel(sch.fuse(split, partition))
    sch.decompose_reduction(partial, cache_block)


def _sum_channels_last(sch: Schedule, total: SBlockRV) -> None:
    """Partial sums with vectors over channels, which are contiguous."""
    _, *positions = sch.get_loops(total)
    fused = sch.fuse(*positions)
    split, _ = sch.split(fused, [largest_divisor(blocks.extent(sch, fused), WORK_ITEMS), None])
    partial = sch.rfactor(split, 0)
    channel, split, position = sch.get_loops(partial)
    sch.reorder(split, position, channel)
    outermost = _add_rows(sch, [position], channel)
    sch.parallel(split)
    sch.decompose_reduction(partial, outermost)


def _add_rows(sch: Schedule, positions: Sequence[LoopRV], channel: LoopRV) -> LoopRV:
    """Add rows of channels to the partial sums, some positions together. Returns the outermost loop over positions."""
    *outer, last = positions
    last, few = sch.split(last, [None, largest_divisor(blocks.extent(sch, last), TOGETHER)])
    vectors, lane = _by_vectors(sch, channel)
    sch.reorder(*outer, last, vectors, few, lane)
    sch.unroll(few)
    blocks.vectorize(sch, lane)
    return (*outer, last)[0]


def _sum_channels_first(sch: Schedule, total: SBlockRV) -> None:
    """Partial sums with vectors over positions, which are contiguous; a channel's lanes are added up at the end."""
    channel, image, *space = sch.get_loops(total)
    row = sch.fuse(*space)
    splits = -(-WORK_ITEMS // blocks.extent(sch, channel))
    split, _ = sch.split(image, [largest_divisor(blocks.extent(sch, image), splits), None])
    _, lane = _by_vectors(sch, row)
    partial = sch.rfactor(split, 0)
    vector = sch.rfactor(sch.get_loops(partial)[-1], 2)
    sch.set_scope(vector, 0, "local")
    channel, split, image, _, lane = sch.get_loops(vector)
    blocks.vectorize(sch, lane)
    sch.reverse_compute_at(partial, split, preserve_unit_loops=True)
    sch.unroll(sch.get_loops(partial)[-1])
    sch.parallel(sch.fuse(channel, split))
    sch.decompose_reduction(vector, image)


def _by_vectors(sch: Schedule, loop: LoopRV) -> list[LoopRV]:
    """A loop split into vectors and their lanes."""
    return list(sch.split(loop, [None, largest_divisor(blocks.extent(sch, loop), LANES)]))
