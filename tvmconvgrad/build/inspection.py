"""What a kernel is: its mathematics, its program, its assembly. Importing this imports TVM and its compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm import te, tirx
from tvm.ir import IRModule

from tvmconvgrad.build import compiler
from tvmconvgrad.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.merging import merged
from tvmconvgrad.targets import Target


@dataclass(frozen=True)
class Inspection:
    """A kernel to read. `te`, `tir` and `assembly` are texts; the kernel need not run on this machine."""

    problem: Problem
    target: Target
    schedule: str
    te: str
    tir: str
    assembly: str
    workspace_bytes: int


def inspect(problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None) -> Inspection:
    """Compile a problem and keep what it becomes on the way.

    Raises ValueError when the schedule or the target's CPU is unknown, ChoiceRefused when a choice does not apply.
    """
    built = compiler.build(merged(problem), target, schedule, choice)
    scheduled = built.scheduled
    return Inspection(
        problem,
        target,
        str(scheduled),
        _text(te.create_prim_func(scheduled.expression.arguments)),
        _text(scheduled.module),
        built.executable.mod.inspect_source("s"),
        built.workspace_bytes,
    )


def _text(program: IRModule | tirx.PrimFunc) -> str:
    """TVM's script of a program, for reading: every number is an int64, and that is not repeated at each."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", program.script())
