"""What a kernel is: its mathematics, its program, its assembly. Importing this imports TVM and its compiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tvm import te, tirx
from tvm.ir import IRModule

from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced


class Built(Protocol):
    """A problem's code, as a backend's compiler has it before it is linked or assembled."""

    @property
    def scheduled(self) -> Scheduled:
        """The program."""

    @property
    def workspace_bytes(self) -> int:
        """What a call on one thread allocates."""

    @property
    def source(self) -> str | None:
        """The code in a language that people write, where that is on the way."""

    def assembly(self) -> str:
        """The assembly. MissingToolkit where that is not to be had here."""


@dataclass(frozen=True)
class Inspection:
    """A kernel to read. `te`, `tir` and `source` are texts; the kernel need not run on this machine.

    `source` is CUDA's C++, where that is on the way.
    """

    problem: Problem
    target: Target
    schedule: str
    te: str
    tir: str
    source: str | None
    workspace_bytes: int
    _assemble: Callable[[], str] = field(repr=False)

    @cached_property
    def assembly(self) -> str:
        """The assembly, or a GPU's PTX. MissingToolkit where that is not to be had here."""
        return self._assemble()


def inspect(problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None) -> Inspection:
    """Compile a problem and keep what it becomes on the way.

    Raises ValueError when the schedule or the target's CPU is unknown, ChoiceRefused when a choice does not apply.
    """
    built: Built = target.backend.get("compiler").build(reduced(problem), target, schedule, choice)
    mathematics = _text(te.create_prim_func(built.scheduled.expression.arguments))
    program = _text(built.scheduled.module)
    schedule_text, workspace = str(built.scheduled), built.workspace_bytes
    return Inspection(problem, target, schedule_text, mathematics, program, built.source, workspace, built.assembly)


def _text(program: IRModule | tirx.PrimFunc) -> str:
    """TVM's script of a program, for reading: every number is an int64, and that is not repeated at each."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", program.script())
