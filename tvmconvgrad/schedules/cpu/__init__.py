"""Schedules for CPUs."""

from functools import lru_cache

import tvm

from tvmconvgrad.machines.cpu import Machine
from tvmconvgrad.machines.targets import AUTO, Target
from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.cpu.blocks import fill_zeros
from tvmconvgrad.schedules.cpu.data.rule import PositionsRule
from tvmconvgrad.schedules.cpu.weights.rule import FilterRule
from tvmconvgrad.schedules.cpu.weights_rows.rule import FilterPositionsRule
from tvmconvgrad.schedules.cpu.winograd.data import WinogradPositionsRule
from tvmconvgrad.schedules.cpu.winograd.weights import WinogradFilterRule
from tvmconvgrad.schedules.zero import ZeroRule


@lru_cache(maxsize=64)  # LLVM is asked for a CPU's features
def cpu_rules(target: Target) -> tuple[Rule, ...]:
    """The rules for an `llvm` target, with those of Winograd's algorithm where the target's may be "auto"; for equal
    costs the first one is taken."""
    machine = Machine.of(tvm.target.Target(target.to_dict()))
    filters = [FilterRule(machine, lanes) for lanes in ("o", "c", "groups")]
    positions = [PositionsRule(machine, lanes) for lanes in ("channels", "groups", "positions", "summed")]
    direct: tuple[Rule, ...] = (*filters, FilterPositionsRule(machine), *positions, ZeroRule(fill_zeros))
    if target.algorithm == AUTO:
        return (*direct, WinogradFilterRule(machine), WinogradPositionsRule(machine))
    return direct
