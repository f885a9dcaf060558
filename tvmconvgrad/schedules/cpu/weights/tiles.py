"""The candidate register tiles of weights gradients, and the cost of each; the cheapest is chosen.

A large tile loads fewer operands for each FMA. But a tile that does not divide the sizes computes surplus elements. The
vectorised axis decides what must be packed, and whether the filter must be converted to another order.
"""

from __future__ import annotations

from math import ceil, inf, prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import BORDERED, GROUPING, PACKING, REGROUPING, SHARED, TRANSPOSING
from tvmconvgrad.schedules.cpu.micro_kernel import SPARE, channel_widths, fits_registers, tile_efficiency, vector_widths
from tvmconvgrad.schedules.cpu.weights import tile_registers
from tvmconvgrad.schedules.cpu.weights.access import WeightsAccess, WeightsAxis, WeightsTile
from tvmconvgrad.schedules.factors import divisors, largest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import ceil_to, group_sizes

FINISHING = 3.0
"""Cycles for each element to transpose a filter from the accumulator's order to the user's. With half of it 1 sum
changes, and takes 0.90 times as long; twice changes no sum (benchmarks/constants.py)."""

DROPPED = 0.5
"""Waiting for dropped prefetches, as a share of the time that all tensors take from memory. With this term MobileNet's
block2 and block3 became 1.29 times as fast in the mean (AVX-512, tensors larger than the cache)."""

OPERANDS, VECTORS_OF_TAPS, DISPLACED = (0.25, 0.25), (0.5, 0.5), 0.5
"""What loading a row's and a column's operand costs, in FMAs. VECTORS_OF_TAPS: vectors over c, where each tap has other
vectors of x. With a single tap they cost as much as OPERANDS, if f32 is multiplied with AVX-512. If that held
elsewhere, six layers in bf16 and NCX, with no more channels c than o, would take vectors over c, and 1.05 to 1.15 times
as long; four for `x86-64-v3`, and 1.05 to 1.10 times (an AMD EPYC with Zen 5). DISPLACED: a vector of rows that
conflict in L1 (`WeightsAccess.rows_displace`) while data from memory passes through, so that it comes from L2 again;
with this term weights gradients of 1x1 layers with many channels became 1.38 to 1.41 times as fast on Zen 5 (tensors in
memory). Sums that change with half and with twice, and their times beside today's: OPERANDS 3, 0.89 and 8, 0.96;
VECTORS_OF_TAPS 4, 1.05 and 2, 1.28; DISPLACED 0 and 1, 1.02 (benchmarks/constants.py)."""

ENOUGH, ENOUGH_BY_BROADCASTS = 12, 15
"""So many sums keep the FMA units busy (`tile_efficiency`). BY_BROADCASTS: without operands that broadcast, since in a
short loop broadcasts take issue slots. Half and twice of 12 change no sum (benchmarks/constants.py, an AMD EPYC with
Zen 4); 15 was not measured."""

PACKING_NCX = 1.0
"""Cycles for each element to transpose x or dy from NCX, in f32, without groups, and with AVX-512; otherwise it is
`TRANSPOSING` (for `x86-64-v3` three layers would take 1.14 to 1.22 times as long by this number). By this number
MobileNetV2's block2_project and block3_expand and WaveNet's residual take vectors over channels instead of positions,
and 0.67, 0.78 and 0.66 of the time (an AMD EPYC with Zen 5). With 0.45 block1_project and block2_expand would, too, and
take 1.65 and 1.5 times as long."""

READING_NCX = 0.35
"""Cycles for each element and tap to read in place, in NCX, the operand of which a step broadcasts elements. Without it
U-Net's classes would take vectors over its two channels o, and 3 times as long; counted once for all taps, 3x3 sums of
16 to 32, 64 and 128 channels would take vectors over c, and 1.2 to 1.4 times as long (an AMD EPYC with Zen 5)."""

PACKING_VECTOR = 8.0
"""Cycles to pack a vector in NXC, however short. With half of it 2 sums change, and take 1.04 times as long; with
twice, 1 and 0.98 (likewise)."""

FEW_CHANNELS = 4
"""With fewer channels in a group, several taps share a register tile. With more, but for one vector of x
(`_is_one_vector`), that gains nothing, and LLVM mixes up the loads of different positions."""


def tiles(machine: CpuMachine, vector_axis: WeightsAxis, problem: Problem) -> list[WeightsTile]:
    """All tiles with vectors over `vector_axis`, unfiltered; `cost` is infinite for tiles that spill."""
    c_group, o_group = group_sizes(problem.geometry)
    *outer, last = problem.geometry.k
    ones = (1,) * len(outer)
    taps = {(*ones, 1)}
    if vector_axis is WeightsAxis.GROUPS or min(c_group, o_group) < FEW_CHANNELS:
        taps |= {(*ones, last), (*outer, last)}
    elif vector_axis is WeightsAxis.C and _is_one_vector(machine, problem):
        taps |= {(*ones, last)}
    sizes: list[tuple[int, int, int]]
    if vector_axis is WeightsAxis.GROUPS:
        few_c, few_o = ([d for d in divisors(size) if d <= machine.registers] for size in (c_group, o_group))
        sizes = [(c, o, w) for c in few_c for o in few_o for w in vector_widths(machine)]
    else:
        few = range(1, min(o_group if vector_axis is WeightsAxis.C else c_group, machine.registers) + 1)
        sizes = [(w, n, 1) if vector_axis is WeightsAxis.C else (n, w, 1) for n in few for w in channel_widths(machine)]
    return [WeightsTile(t, *size, vector_axis) for t in sorted(taps) for size in sizes]


def _is_one_vector(machine: CpuMachine, problem: Problem) -> bool:
    """Whether x has one vector of f32 channels. A step with one tap then loads an operand for each FMA, so tiles may
    have the taps of a row.

    With several taps six layers of 16 channels, in both layouts, in f32 and f16, became 1.08 times as fast in the mean,
    from 0.92 to 1.22 (an Intel Xeon with AMX). Of bf16 dot-product pairs LLVM mixes up the loads: 0.3 to 0.5.
    """
    pairs = machine.takes_pairs() and problem.dtype == "bf16"
    return machine.lanes <= group_sizes(problem.geometry)[0] < 2 * machine.lanes and not pairs


def products(problem: Problem, tile: WeightsTile) -> int:
    """Multiply-adds, including what tiles round up."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o) * ceil_to(geometry.groups, tile.groups)
    taps = prod(ceil_to(k, t) for k, t in zip(geometry.k, tile.taps))
    return channels * taps * geometry.batch * prod(geometry.y)


def cost(access: WeightsAccess) -> float:
    """Cycles of one core, about, with a tile: for the products, for packing, and for converting the filter. Infinite if
    the tile's sums don't stay in registers."""
    problem = access.problem
    cycles = _multiplying(access)
    if cycles == inf:
        return inf
    shapes, sizes = (problem.x_shape, problem.y_shape), group_sizes(problem.geometry)
    for shape, channels, block in zip(shapes, sizes, access.blocks):
        cycles += _packing(access, channels, block) * prod(shape)
    return cycles + _waiting(access) + _finishing(access) * prod(problem.filter_shape)


def packing_again(access: WeightsAccess, times: float) -> float:
    """Cycles of one core, about, which `cost` lacks if cache blocks together pack x so many `times`."""
    if not access.blocks[0]:
        return 0.0
    channels, _ = group_sizes(access.problem.geometry)
    return max(times - 1, 0.0) * _packing(access, channels, access.blocks[0]) * prod(access.problem.x_shape)


def _multiplying(access: WeightsAccess) -> float:
    """Cycles of one core, about, for the products; infinite if the tile's sums don't stay in registers."""
    count = products(access.problem, access.tile)
    if access.tile.tile_rows:
        return count * tile_registers.cycles_per_product(access)
    efficiency = _efficiency(access)
    at_a_time = access.machine.products(access.pairs)
    return count / (at_a_time * efficiency) if efficiency else inf


def _efficiency(access: WeightsAccess) -> float:
    """The share of peak FLOPs that a tile may reach; 0 if it spills."""
    machine, problem, tile = access.machine, access.problem, access.tile
    taps = prod(tile.taps)
    enough = ENOUGH if machine.broadcasts else ENOUGH_BY_BROADCASTS
    if tile.vector_axis is WeightsAxis.GROUPS:
        rows = taps * tile.c
        # Neighbouring positions read the same x at neighbouring taps, and LLVM keeps it in registers.
        fits = tile.o == 1 or problem.geometry.strides[-1] > 1 or rows * (tile.o + 1) + SPARE <= machine.registers
        return tile_efficiency(machine, rows, tile.o, tile.groups, enough=enough) if fits else 0.0
    vector = min(tile.o if tile.vector_axis is WeightsAxis.O else tile.c, machine.lanes)
    if tile.vector_axis is WeightsAxis.O:
        rows, columns, costs = taps * tile.c, tile.o // vector, OPERANDS
    else:
        one_tap = prod(problem.geometry.k) == 1 and machine.broadcasts and not access.pairs
        rows, columns, costs = tile.o, taps * tile.c // vector, OPERANDS if one_tap else VECTORS_OF_TAPS
    if not fits_registers(machine, rows, columns):
        return 0.0
    # Operands that are read in place LLVM loads further ahead; without spare registers it would spill a sum each step.
    spare = SPARE if all(access.blocks) else machine.registers // 8
    if access.reads_far_in_place:
        costs = OPERANDS[0], (DISPLACED if access.rows_displace else OPERANDS[1])
    return tile_efficiency(machine, rows, columns, vector, costs, enough, spare)


def _packing(access: WeightsAccess, channels: int, block: int) -> float:
    """Cycles for each element to pack an operand by blocks of `block` channels; a group has `channels` of it."""
    machine, problem, tile = access.machine, access.problem, access.tile
    if block == 0:
        by_taps = prod(ceil(k / taps) for k, taps in zip(problem.geometry.k, tile.taps))
        return READING_NCX * by_taps if access.broadcasts_in_place else 0.0
    if tile.tile_rows and block == 1:  # of x, and only what taps read: a quarter for a single tap at stride 2
        return TRANSPOSING * min(access.packed[0] / prod(problem.x_shape), 1.0)
    if problem.data_format == "NCX":
        if tile.groups > 1 and channels > 1:
            return REGROUPING
        if problem.geometry.groups == 1 and block == 1:
            return BORDERED if access.blocking.converts(problem) else PACKING
        if tile.groups > 1 or block < FEW_CHANNELS:
            return TRANSPOSING
        # Squares of channels x positions are transposed: the last ones of a block overlap, and small ones fill no
        # vector.
        side = min(1 << block.bit_length() - 1, machine.lanes)
        is_fast = machine.broadcasts and not access.pairs and problem.geometry.groups == 1
        cycles = PACKING_NCX if is_fast else TRANSPOSING
        return cycles * ceil_to(block, side) / block * max(1.0, machine.lanes / 2 / side)
    if tile.groups > 1 and channels > 1:
        return GROUPING
    width = tile.groups * min(block, channels)  # the rest of a block is zeros
    return max(PACKING, PACKING_VECTOR / largest_divisor(width, machine.lanes))


def _waiting(access: WeightsAccess) -> float:
    """Extra cycles that a strided depthwise tile waits for memory if it reads whole cache lines.

    A position reads so many lines that the core drops some prefetches. If tiles read half lines, the next tile
    prefetches the same lines again.
    """
    problem, tile = access.problem, access.tile
    strided = problem.geometry.strides[-1] > 1 and tile.taps == problem.geometry.k
    far = problem.tensor_bytes > SHARED * access.machine.l3
    once = F32_BYTES * tile.groups >= CACHE_LINE and not any(access.blocks)
    from_memory = access.machine.memory_cycles_per_byte * problem.tensor_bytes
    return DROPPED * from_memory if strided and far and once else 0.0


def _finishing(access: WeightsAccess) -> float:
    """Cycles for each element to convert the filter from the accumulator's order to the user's."""
    if access.writes_result:
        return 0.0
    return PACKING if access.writes_along else FINISHING
