"""Rules for CPUs: `cpu_rules` lists them.

What they share: costs.py, micro_kernel.py, packing/, blocks.py, bias.py and tile_registers.py.
"""

from functools import lru_cache

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.machines.targets import AUTO, Target
from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.cpu.bias import schedule_zeros_and_bias
from tvmconvgrad.schedules.cpu.data.rule import DataRule
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis
from tvmconvgrad.schedules.cpu.weights.access import WeightsAxis
from tvmconvgrad.schedules.cpu.weights.rule import WeightsRule
from tvmconvgrad.schedules.cpu.weights_rows.rule import RowsRule
from tvmconvgrad.schedules.cpu.winograd.channels.rule import WinogradChannelsRule
from tvmconvgrad.schedules.cpu.winograd.data.rule import WinogradDataRule
from tvmconvgrad.schedules.cpu.winograd.weights.rule import WinogradWeightsRule
from tvmconvgrad.schedules.zero import ZeroRule


@lru_cache(maxsize=64)  # LLVM is asked for a CPU's features
def cpu_rules(target: Target) -> tuple[Rule, ...]:
    """The rules for an `llvm` target: with AMX's tile registers if the target has them, with Winograd's algorithm if
    it has `-algorithm=auto`. Of equal costs the first rule is taken."""
    machine = CpuMachine.of(target)
    weights = [WeightsRule(machine, axis) for axis in (WeightsAxis.O, WeightsAxis.C, WeightsAxis.GROUPS)]
    data = [DataRule(machine, axis) for axis in (DataAxis.N, DataAxis.GROUPS, DataAxis.M, DataAxis.K)]
    if machine.tile_registers:
        weights.append(WeightsRule(machine, WeightsAxis.O, in_tile_registers=True))
        data += [DataRule(machine, axis, in_tile_registers=True) for axis in (DataAxis.N, DataAxis.M)]
    direct: tuple[Rule, ...] = (*weights, RowsRule(machine), *data, ZeroRule(schedule_zeros_and_bias))
    if target.algorithm == AUTO:
        return (*direct, WinogradWeightsRule(machine), WinogradChannelsRule(machine), WinogradDataRule(machine))
    return direct
