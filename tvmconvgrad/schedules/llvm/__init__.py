"""Schedules for CPUs."""

from functools import lru_cache

import tvm

from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.llvm.blocks import fill_zeros
from tvmconvgrad.schedules.llvm.filter_positions import FilterPositionsRule
from tvmconvgrad.schedules.llvm.filters import FilterRule
from tvmconvgrad.schedules.llvm.machine import Machine
from tvmconvgrad.schedules.llvm.positions import PositionsRule
from tvmconvgrad.schedules.llvm.winograd_filters import WinogradFilterRule
from tvmconvgrad.schedules.llvm.winograd_positions import WinogradPositionsRule
from tvmconvgrad.schedules.zero import ZeroRule
from tvmconvgrad.targets import AUTO, Target


@lru_cache(maxsize=64)  # LLVM is asked for a CPU's features
def llvm_rules(target: Target) -> tuple[Rule, ...]:
    """The rules for an `llvm` target, with those of Winograd's algorithm where the target's may be "auto"; for equal
    costs the first one is taken."""
    machine = Machine.of(tvm.target.Target(target.to_dict()))
    filters = [FilterRule(machine, lanes) for lanes in ("o", "c", "groups")]
    positions = [PositionsRule(machine, lanes) for lanes in ("channels", "groups", "positions", "summed")]
    direct: tuple[Rule, ...] = (*filters, FilterPositionsRule(machine), *positions, ZeroRule(fill_zeros))
    if target.algorithm == AUTO:
        return (*direct, WinogradFilterRule(machine), WinogradPositionsRule(machine))
    return direct
