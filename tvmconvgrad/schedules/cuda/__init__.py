"""Schedules for NVIDIA GPUs."""

import tvm

from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.cuda.depthwise import DepthwiseRule
from tvmconvgrad.schedules.cuda.gemm import GemmRule
from tvmconvgrad.schedules.cuda.machine import Machine
from tvmconvgrad.schedules.cuda.threads import ThreadsRule, fill_zeros
from tvmconvgrad.schedules.zero import ZeroRule
from tvmconvgrad.targets import TF32, Target


def cuda_rules(target: Target) -> list[Rule]:
    """The rules for a `cuda` target; for equal costs the first one is taken. Costs are microseconds, about."""
    machine = Machine.of(tvm.target.Target(target.to_dict()))
    return [GemmRule(machine, target.fpmath_mode == TF32), DepthwiseRule(machine), ThreadsRule(), ZeroRule(fill_zeros)]
