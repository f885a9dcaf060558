"""Depthwise sums in NCX whose data is read in place, with its padding, by masked loads (tir/passes/masking.py): of f32
with AVX or AVX-512, of 16 bits with AVX512BW.

A depthwise sum has few products for each element, so that packing its data takes longer than they do.

    for row of tiles:                     # the first and the last one stand apart (tir/passes/peeling.py)
      for tile of that row:
        tile = 0                          # rows x vectors of positions, in registers
        for tap along the last axis:
          for row, vector, tap of a column:    # unrolled: a vector is loaded once for all taps of a column
            tile[row, vector] += data[row + tap, vector + tap along the last axis] * filter[tap]

A vector's mask depends on its place along the last axis, and is computed once for all rows. Whether a row is padding is
known when the program is built, except in middle tiles, which meet padding only if there is more of it than a tile has
rows.

The output phases of a strided gradient write to the same cache lines. So a work item computes all phases of one group,
or of a few if results are staged (`group_partitions` in partition.py). If they are not, tiles prefetch the lines of
later results.

Beside the sums of packed data, MobileNetV2's block1_depthwise (data) took 0.60 of the time, block4b_depthwise 0.33,
ConvNeXt's stage3_depthwise 0.70, and MobileNetV2's block3b_depthwise (forward) 0.39 (`tvmconvgrad bench all
--data-format NCX --only data --ours-too checkout=FOLDER`, an AMD EPYC with Zen 5).

Forwards of few channels were tried in the same way, with vectors of the first layers' images read in place: Inception's
took 0.8 of the time, but EfficientNet's 1.1 and ConvNeXt's 1.4, since tiles of one channel's positions each are written
to as many pages of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.machines.cpu import CACHE_LINE, CpuMachine
from tvmconvgrad.schedules.cpu import blocks
from tvmconvgrad.schedules.cpu.data.sizes import DataSizes, DataTile
from tvmconvgrad.schedules.cpu.data.sum_axis import SumAxis
from tvmconvgrad.schedules.cpu.micro_kernel import ENOUGH_IF_SHORT, SPARE, utilization
from tvmconvgrad.schedules.transforms.prefetch import prefetch_results
from tvmconvgrad.spec import Gradient
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Expression
from tvmconvgrad.te.data_gradient import phase_convolutions
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.tir.annotations import MASK, PEEL, PREFETCH_EACH, PREFETCH_LINE, PREFETCH_READS
from tvmconvgrad.tir.passes.limits import MAX_STRIDE

LEAST_SUMS = 4
"""The sums that should have registers beside a column of taps: ConvNeXt's stage3_depthwise (data), whose seven taps
leave none for `x86-64-v3`, took 1.5 times as long as with packed data (an AMD EPYC with Zen 5)."""

LOADING = 0.5
MASKING, MASKING_WHOLE_ROWS = 4.0, 2.0
ENDING = 4.0
"""What a vector costs, in FMAs: to load it, where most cross a cache line; its mask, which is a constant in tiles of
whole rows; and to store it, where a row's last tile has fewer positions than others, so that each row is tested. They
rank most tiles as they were measured (milliseconds, data, an AMD EPYC with Zen 5; rows x positions of a tile):

    block3b_depthwise, 28 positions a row    f32: 7 x 32 0.45, 14 x 16 0.54; bf16: 0.45, 0.76; f16: 0.31, 0.44
    block2b_depthwise, 56                    f32: 2 x 64 1.65, 14 x 16 2.69; bf16: 1.34, 1.74; f16: 1.03, 1.33
    block1_depthwise, 112                    f32: 2 x 112 1.34, 14 x 16 1.77; bf16: 1.02, 1.11; f16: 0.92, 0.89
    ConvNeXt's stage2_depthwise, 28          f32: 7 x 32 0.59, 14 x 16 0.55; bf16: 0.67, 0.66; f16: 0.60, 0.61
    ConvNeXt's stage1_depthwise, 56          f32: 2 x 64 1.77, 14 x 16 1.16; bf16: 1.69, 1.35; f16: 1.65, 1.31"""

AHEAD = 3072
"""Prefetch distance in elements, rounded up to whole rows. With half and twice of it MobileNetV2's block1_depthwise
took 1.57 and 0.78 times as long, block2b_depthwise 1.07 and 0.95, block3b_depthwise 0.97 and 1.07 (data, an AMD EPYC
with Zen 5)."""

RESULTS_AHEAD = 784
"""Prefetch distance of results in elements, rounded up to whole rows. A core's own prefetcher does not follow them
where rows end within cache lines, or output phases write parts of them. Times with prefetches and without where results
lie in memory, and where L3 has them (data, an Intel Xeon with AMX):

    block4_depthwise, with output phases    0.68, 0.79
    block6_depthwise, with output phases    0.66, 0.85
    block2b_depthwise                       0.83, 1.00
    block3b_depthwise                       0.80, 0.96

With half of the distance the first two took 1.15 and 1.07 times as long, with twice 1.04 and 1.01."""


def reads_in_place(machine: CpuMachine, sizes: DataSizes) -> bool:
    """Whether the data of sums with vectors over positions is read in place, by masked loads."""
    problem, geometry = sizes.problem, sizes.problem.geometry
    if problem.data_format != "NCX" or not machine.loads_masked(problem.dtype):
        return False
    if problem.gradient is Gradient.FORWARD and geometry.strides[-1] > MAX_STRIDE:
        return False
    return sizes.is_depthwise and sizes.is_product and _fits(machine, sizes, LEAST_SUMS)


def efficiency(machine: CpuMachine, sizes: DataSizes, tile: DataTile) -> float:
    """The share of peak FLOPs that a tile may reach; 0 if it spills."""
    phases, columns, used = tile.vectors(machine.lanes)
    vectors, sums = columns // tile.rows, phases * columns
    if not _fits(machine, sizes, sums):
        return 0.0
    down, along = max(_axes(sizes), key=lambda axes: axes[0].taps)
    rows = len({row * down.stride + tap * down.step for row in range(tile.rows) for tap in range(down.taps)})
    fmas, loads = sums * down.taps, rows * vectors * along.stride
    parts = [size.positions[-1] for size in sizes.sums if size.positions[-1] > tile.positions]
    masking = MASKING if parts else MASKING_WHOLE_ROWS
    ending = ENDING if any(row % tile.positions for row in parts) else 0.0
    share = fmas / (fmas + LOADING * loads + masking * vectors + ending * sums / along.taps)
    return utilization(machine, sums, ENOUGH_IF_SHORT) * share * used / machine.lanes


def rows_ahead(sizes: DataSizes) -> int:
    """The prefetch distance in rows; 0 where there is one row, which a core's own prefetcher follows."""
    return -(-AHEAD // sizes.problem.input_shapes[0][-1]) if sizes.problem.geometry.rank > 1 else 0


def prefetch_planes(module: IRModule, sizes: DataSizes, expression: Expression) -> IRModule:
    """`module`, in which tiles prefetch the cache lines of later results. Of the sums along a row, which share them,
    the first one does. Within a plane it prefetches rows of its own output phase, so that those of all phases are."""
    problem = sizes.problem
    if problem.geometry.rank == 1:  # a core's own prefetcher follows one row
        return module
    parts = phase_convolutions(problem) if problem.gradient is Gradient.DATA else ()
    others = [number for number, part in enumerate(parts) if part.phase_groups[-1].r_begin > 0]
    period = problem.geometry.strides[-2] if problem.gradient is Gradient.DATA else 1
    rows = ceil_to(-(-RESULTS_AHEAD // problem.output_shape[-1]), period)
    for number, result in enumerate(expression.sum_results):
        if number not in others:
            module = prefetch_results(module, result.op.name, (rows, 0))
    return module


def schedule_tile(
    sch: Schedule,
    sizes: DataSizes,
    m_blocks: Sequence[LoopRV],
    k_loops: Sequence[LoopRV],
    tile: Sequence[LoopRV],
    lanes: int,
    prefetches: bool,
) -> None:
    """Schedule the loops of a tile and those around it, from (image, *rows, tile of a row) inwards."""
    block, *taps, k = k_loops
    group, channel, *rows, row = tile
    column = taps[-2:-1]
    vector, lane = sch.split(row, [None, gcd(blocks.extent(sch, row), lanes)])
    unrolled = [k, group, channel, *rows, vector, *column]
    sch.reorder(block, *taps[:-2], taps[-1], *unrolled, lane)
    for loop in unrolled:
        sch.unroll(loop)
    sch.annotate(lane, MASK, 1)
    if column:
        sch.annotate(m_blocks[-2], PEEL, 1)
    if prefetches:
        down, along = _axes(sizes)[0]
        sch.annotate(block, PREFETCH_READS, 1)
        for loop in (*rows, vector):
            sch.annotate(loop, PREFETCH_EACH, blocks.extent(sch, loop))
        for loop in column:  # a row reads so many that the one before has not read
            sch.annotate(loop, PREFETCH_EACH, min(down.stride, blocks.extent(sch, loop)))
        sch.annotate(lane, PREFETCH_LINE, max(CACHE_LINE // ITEM_BYTES[sizes.problem.dtype] // along.stride, 1))


def _fits(machine: CpuMachine, sizes: DataSizes, sums: int) -> bool:
    """Whether so many sums fit the registers, beside the vectors that a column of taps reads, and the filter's elements
    if FMAs cannot broadcast them from memory."""
    each = 1 if machine.broadcasts else 2
    return all(sums + each * down.taps + SPARE <= machine.registers for down, _ in _axes(sizes))


def _axes(sizes: DataSizes) -> list[tuple[SumAxis, SumAxis]]:
    """The last two axes of each sum; an axis of one position and one tap stands for one that is not there."""
    single = SumAxis(1, 1, 0, 1, 0, 1)
    return [(size.axes[-2] if len(size.axes) > 1 else single, size.axes[-1]) for size in sizes.sums]
