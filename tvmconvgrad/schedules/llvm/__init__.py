"""Schedules for CPUs."""

import tvm

from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.llvm.filter_positions import FilterPositionsRule
from tvmconvgrad.schedules.llvm.filters import FilterRule
from tvmconvgrad.schedules.llvm.machine import Machine
from tvmconvgrad.schedules.llvm.positions import PositionsRule
from tvmconvgrad.schedules.llvm.winograd_filters import WinogradFilterRule
from tvmconvgrad.schedules.llvm.winograd_positions import WinogradPositionsRule


def llvm_rules(target: tvm.target.Target) -> list[Rule]:
    """The rules for an `llvm` target; for equal costs the first one is taken."""
    machine = Machine.of(target)
    filters = [FilterRule(machine, lanes) for lanes in ("o", "c", "groups")]
    positions = [PositionsRule(machine, lanes) for lanes in ("channels", "groups", "positions", "summed")]
    return [*filters, FilterPositionsRule(machine), *positions]


def winograd_rules(target: tvm.target.Target) -> list[Rule]:
    """The rules that take Winograd's algorithm instead of direct sums."""
    machine = Machine.of(target)
    return [WinogradFilterRule(machine), WinogradPositionsRule(machine)]
