"""The micro-kernel: a tile of sums in vector registers, and the share of a core's FLOPs that it may reach."""

from __future__ import annotations

from tvmconvgrad.machines.cpu import CpuMachine

LOADING = (0.25, 0.25)
"""What loading the operand of a row and that of a column of a tile costs, in FMAs, in weights gradients with vectors
over groups; other rules have numbers of their own. Half and twice change no sum (benchmarks/constants.py)."""

ENOUGH = 12
"""The sums that keep the units of a CPU with eight FMAs in flight busy, in products of Winograd's algorithm; other
rules have numbers of their own. Half changes no sum; with twice 1 sum changes, and takes 1.13 times as long
(benchmarks/constants.py)."""

ENOUGH_IF_SHORT = 8
"""The same where sums are short, so that several tiles are in flight: depthwise ones. With half of it 1 sum changes,
and takes 1.20 times as long; twice changes no sum (benchmarks/constants.py)."""

SPARE = 2
"""Registers that neither sums nor columns take; one holds the operand of a row."""


def vector_widths(machine: CpuMachine) -> list[int]:
    """The widths of vectors that tiles may have, in f32: a register's, and half of it."""
    return sorted({machine.lanes, max(machine.lanes // 2, 4)})


def channel_widths(machine: CpuMachine) -> list[int]:
    """The numbers of channels that a tile may have along its vectors: one vector of either width, or several whole
    ones."""
    return [*vector_widths(machine), *(machine.lanes * count for count in (2, 3, 4, 6))]


def fits_registers(machine: CpuMachine, rows: int, columns: int, spare: int = SPARE) -> bool:
    """Whether rows x columns vectors of sums fit the registers beside one vector for each column, with `spare`
    registers left."""
    return rows * columns + columns + spare <= machine.registers


def holds_rows(machine: CpuMachine, rows: int, columns: int) -> bool:
    """Whether a step holds the operands of its rows in registers, and takes one column's vector after the other, since
    there is no room for the vectors of all columns: 3 x 4 vectors of sums then take all 16 registers of AVX, with an
    operand for each row and one vector. FMAs that broadcast an operand from memory, or take an element of a vector,
    need no registers for rows."""
    if not machine.fused or machine.broadcasts or machine.by_element or fits_registers(machine, rows, columns):
        return False
    return rows < columns and rows * columns + rows + 1 <= machine.registers


def tile_efficiency(
    machine: CpuMachine,
    rows: int,
    columns: int,
    lanes: int,
    costs: tuple[float, float] = LOADING,
    enough: float = ENOUGH,
    spare: int = SPARE,
    may_hold_rows: bool = False,
) -> float:
    """The share of peak FLOPs that a register tile of rows x columns vectors of sums may reach; 0 if it spills.

    A step of the innermost loop loads `columns` vectors and `rows` scalars for rows * columns FMAs. The sums and
    vectors stay in registers; of the `spare` ones, one holds a scalar. The units idle with fewer than `enough` sums:
    with half of them, for a quarter of the time. `enough` is for CPUs with eight FMAs in flight, and is more for others
    in proportion. `lanes` are those in use. `may_hold_rows` says that the schedule has the order of `holds_rows`.

    `costs` says what loading a row's and a column's operand costs, in FMAs (`PANELS` and others in costs.py, `OPERANDS`
    in weights/tiles.py and winograd/sizes.py), where two FMAs start in a cycle. Where one does (Zen 4), operands wait
    behind it and cost half: with whole costs ResNeXt's conv4b_grouped (filters) took 1.3 times as long, and 47
    gradients and forwards 1.015 times in the mean. With a single column there are more operands than FMAs, and a tile
    is no faster than its loads.
    """
    fmas = rows * columns
    if not fits_registers(machine, rows, columns, spare) and not (may_hold_rows and holds_rows(machine, rows, columns)):
        return 0.0
    loading = (costs[0] * rows + costs[1] * columns) * min(machine.fmas / 2, 1.0)
    loaded = machine.loads_per_cycle / (rows + columns) * fmas / machine.fmas
    return min(utilization(machine, fmas, enough) * fmas / (fmas + loading), loaded) * lanes / machine.lanes


def utilization(machine: CpuMachine, sums: int, enough: float) -> float:
    """The share of time for which the FMA units are busy, by the number of sums in the tile; `enough` is as in
    `tile_efficiency`."""
    return 1 - max(0.0, 1 - sums / (enough * machine.fmas_in_flight / 8)) ** 2
