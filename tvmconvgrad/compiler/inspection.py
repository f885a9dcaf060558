"""What a kernel is: its mathematics, its program, its assembly. Importing this imports TVM and its compiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tvm import te, tirx
from tvm.ir import IRModule

from tvmconvgrad.compiler import llvm
from tvmconvgrad.compiler.cuda import compiler as cuda_compiler
from tvmconvgrad.compiler.cuda import toolkit
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced


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
    same = reduced(problem)
    if target.kind == "cuda":
        source, arch = cuda_compiler.build(same, target, schedule, choice), str(target.arch)
        text = source.program.source
        return _inspection(problem, target, source, text, lambda: toolkit.to_ptx(text, arch))
    built = llvm.build(same, target, schedule, choice)
    return _inspection(problem, target, built, None, lambda: str(built.executable.mod.inspect_source("s")))


def _inspection(
    problem: Problem,
    target: Target,
    built: llvm.Built | cuda_compiler.Built,
    source: str | None,
    assemble: Callable[[], str],
) -> Inspection:
    scheduled = built.scheduled
    mathematics = _text(te.create_prim_func(scheduled.expression.arguments))
    program = _text(scheduled.module)
    return Inspection(problem, target, str(scheduled), mathematics, program, source, built.workspace_bytes, assemble)


def _text(program: IRModule | tirx.PrimFunc) -> str:
    """TVM's script of a program, for reading: every number is an int64, and that is not repeated at each."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", program.script())
