"""Schedules for NVIDIA GPUs."""

import tvm

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.machines.targets import TF32, Target
from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.cuda.depthwise.rule import DepthwiseRule
from tvmconvgrad.schedules.cuda.gemm.rule import GemmRule
from tvmconvgrad.schedules.cuda.naive.rule import NaiveRule, fill_zeros
from tvmconvgrad.schedules.zero import ZeroRule


def cuda_rules(target: Target) -> list[Rule]:
    """The rules for a `cuda` target; their costs are in microseconds. Of equal costs the first rule is taken."""
    machine = GpuMachine.of(tvm.target.Target(target.to_dict()))
    return [GemmRule(machine, target.fpmath_mode == TF32), DepthwiseRule(machine), NaiveRule(), ZeroRule(fill_zeros)]
