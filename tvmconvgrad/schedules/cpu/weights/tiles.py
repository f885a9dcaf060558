"""Which register tiles a filter gradient may have, and what each costs: by that one is chosen.

A large tile loads fewer operands for each product; one that does not divide the sizes computes more than is asked for;
and which way its vectors lie decides what must be packed, and whether the filter must be brought into another order.
"""

from __future__ import annotations

from math import inf, prod

from tvmconvgrad.machines.cpu import CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import GROUPING, PACKING, REGROUPING, SHARED, TRAFFIC, TRANSPOSING
from tvmconvgrad.schedules.cpu.weights.access import WeightsAccess, WeightsTile
from tvmconvgrad.schedules.factors import divisors, largest_divisor
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.tensors import ceil_to, group_sizes

FINISHING = 3.0
"""Cycles an element to bring a filter from the tiles' order into another."""

DROPPED = 0.5
"""What waiting for dropped fetches takes, as a part of what all tensors take from memory."""

OPERANDS, VECTORS_OF_TAPS, DISPLACED = (0.25, 0.25), (0.5, 0.5), 0.5
"""Parts of an FMA that a row's and a column's operand costs: with vectors over c those of x are others for each tap;
and a vector of rows that displace each other, while data from memory passes through, comes from L2 again."""

FEW_CHANNELS = 4
"""Where there are fewer, taps share a tile, too. Elsewhere that gains nothing, and LLVM mixes the positions up."""


def tiles(machine: CpuMachine, lanes: str, problem: Problem) -> list[WeightsTile]:
    """All tiles with vectors over `lanes`, also those whose sums don't stay in registers."""
    c_group, o_group = group_sizes(problem.geometry)
    *outer, last = problem.geometry.k
    ones = (1,) * len(outer)
    taps = {(*ones, 1)}
    if lanes == "groups" or min(c_group, o_group) < FEW_CHANNELS:
        taps |= {(*ones, last), (*outer, last)}
    sizes: list[tuple[int, int, int]]
    if lanes == "groups":
        few_c, few_o = ([d for d in divisors(size) if d <= machine.registers] for size in (c_group, o_group))
        sizes = [(c, o, w) for c in few_c for o in few_o for w in machine.vectors]
    else:
        few = range(1, min(o_group if lanes == "c" else c_group, machine.registers) + 1)
        sizes = [(w, n, 1) if lanes == "c" else (n, w, 1) for n in few for w in machine.widths]
    return [WeightsTile(t, *size, lanes) for t in sorted(taps) for size in sizes]


def products(problem: Problem, tile: WeightsTile) -> int:
    """Multiply-adds, with all that is rounded up."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    channels = ceil_to(c_group, tile.c) * ceil_to(o_group, tile.o) * ceil_to(geometry.groups, tile.groups)
    taps = prod(ceil_to(k, t) for k, t in zip(geometry.k, tile.taps))
    return channels * taps * geometry.batch * prod(geometry.y)


def cost(access: WeightsAccess) -> float:
    """Cycles of one core, about, with a tile: of the products, of packing, and of finishing the filter. Infinitely many
    where its sums don't stay in registers."""
    machine, problem, tile = access.machine, access.problem, access.tile
    efficiency = _efficiency(access)
    if efficiency == 0:
        return inf
    at_a_time = 2 * machine.lanes * (2 if access.pairs else 1)
    cycles = products(problem, tile) / (at_a_time * efficiency)
    shapes, sizes = (problem.x_shape, problem.y_shape), group_sizes(problem.geometry)
    for shape, channels, block in zip(shapes, sizes, access.blocks):
        cycles += _packing(access, channels, block) * prod(shape)
    return cycles + _waiting(access) + _finishing(access) * prod(problem.filter_shape)


def _efficiency(access: WeightsAccess) -> float:
    """The share of peak that a tile may reach; 0 when it spills. Y's operands are read for each tap, X's once."""
    machine, problem, tile = access.machine, access.problem, access.tile
    taps = prod(tile.taps)
    enough = 12 if machine.broadcasts else 15  # the loop is short, and broadcasts take their part of it
    if tile.vector_axis == "groups":
        rows = taps * tile.c
        # x of neighbouring positions is the next taps', and LLVM keeps what several products share.
        fits = tile.o == 1 or problem.geometry.strides[-1] > 1 or rows * (tile.o + 1) + 2 <= machine.registers
        return machine.tile_efficiency(rows, tile.o, tile.groups, enough=enough) if fits else 0.0
    vector = min(tile.o if tile.vector_axis == "o" else tile.c, machine.lanes)
    if tile.vector_axis == "o":
        rows, columns, costs = taps * tile.c, tile.o // vector, OPERANDS
    else:
        rows, columns, costs = tile.o, taps * tile.c // vector, VECTORS_OF_TAPS
    if not machine.holds(rows, columns):
        return 0.0
    # Of what is read where it lies, and fetched, LLVM loads more ahead: it would spill a sum in each step.
    spare = 2 if all(access.blocks) else machine.registers // 8
    if access.reads_far_in_place:
        costs = OPERANDS[0], (DISPLACED if access.rows_displace else OPERANDS[1])
    return machine.tile_efficiency(rows, columns, vector, costs, enough, spare)


def _packing(access: WeightsAccess, channels: int, block: int) -> float:
    """Cycles an element to pack blocks of so many channels, of those of a group."""
    machine, problem, tile = access.machine, access.problem, access.tile
    if block == 0:
        return 0.0
    if problem.data_format == "NCX":
        if tile.groups > 1 and channels > 1:
            return REGROUPING
        if tile.groups > 1 or block < FEW_CHANNELS:
            return TRANSPOSING
        # Squares of channels and positions are transposed: the last of a block overlap, small ones fill no vectors.
        side = min(1 << block.bit_length() - 1, machine.lanes)
        return TRANSPOSING * ceil_to(block, side) / block * max(1.0, machine.lanes / 2 / side)
    if tile.groups > 1 and channels > 1:
        return GROUPING
    return max(PACKING, 8 / largest_divisor(tile.groups * block, machine.lanes))


def _waiting(access: WeightsAccess) -> float:
    """Cycles that strided depthwise tiles of whole lines wait for memory longer than those of half lines.

    A position brings so many lines that a core drops some of the fetches. Of half lines, the next tile fetches them
    again.
    """
    problem, tile = access.problem, access.tile
    strided = problem.geometry.strides[-1] > 1 and tile.taps == problem.geometry.k
    far = problem.tensor_bytes > SHARED * access.machine.l3
    once = F32_BYTES * tile.groups >= CACHE_LINE and not any(access.blocks)
    return DROPPED * TRAFFIC * problem.tensor_bytes if strided and far and once else 0.0


def _finishing(access: WeightsAccess) -> float:
    """Cycles an element to bring the filter from the tiles' order into the user's."""
    if access.writes_result:
        return 0.0
    return PACKING if access.writes_along else FINISHING
