"""From a problem to a GPU's machine code and its launches. Importing this imports TVM and its compiler."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tvmconvgrad.cache.entry import Entry, pack
from tvmconvgrad.common.errors import TooLarge
from tvmconvgrad.compiler.cuda import codegen, toolkit
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.schedules.chosen import scheduled_as
from tvmconvgrad.spec import Problem

_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 120: 99, 121: 99}
_MOST_SHARED_KIB = 227
_MOST_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Built:
    """A problem's program in CUDA's C++."""

    scheduled: Scheduled
    program: Program
    target: Target

    @property
    def workspace_bytes(self) -> int:
        """The memory that a call needs on the GPU besides its tensors."""
        return self.program.workspace_bytes

    @property
    def source(self) -> str:
        """CUDA's C++."""
        return self.program.source

    def assembly(self) -> str:
        """The PTX. MissingToolkit."""
        return toolkit.to_ptx(self.program.source, str(self.target.arch))


def build(problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None) -> Built:
    """Generate the C++ of a problem; it takes no toolkit. ValueError for an unknown schedule, ChoiceRefused."""
    scheduled = scheduled_as(problem, target, schedule, choice)
    return Built(scheduled, codegen.generate(scheduled.module, target), target)


def compile_problem(
    problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Compile a problem; returns the machine code and what there is to know of it, as JSON's types.

    Raises ValueError when the schedule or the target's architecture is unknown, ChoiceRefused when a search's choice
    does not apply, MissingToolkit without CUDA's toolkit.
    """
    begin = time.perf_counter()
    built = build(problem, target, schedule, choice)
    code, facts = compile_program(built.program, target)
    about = {"problem": str(problem), "schedule": str(built.scheduled), "requires": []}
    return code, {**about, **facts, "build_seconds": round(time.perf_counter() - begin, 3)}


def compile_scheduled(scheduled: Scheduled, target: Target) -> bytes:
    """A scheduled problem as a file of the cache: machine code with its launches. Raises as compile_problem does."""
    return pack(Entry.of({"arch": target.arch}, *compile_program(codegen.generate(scheduled.module, target), target)))


def compile_program(program: Program, target: Target) -> tuple[bytes, dict[str, Any]]:
    """The machine code of a program; TooLarge where it cannot be launched."""
    assert target.arch is not None, "a target of this kind has an architecture"
    code = toolkit.compile_source(program.source, target.arch)
    _check(program, code, target.arch)
    return code.image, {
        "workspace_bytes": program.workspace_bytes,
        "launches": [launch.to_dict() for launch in program.launches],
        "usage": {each.function: each._asdict() for each in code.usage},
        "compiler": code.compiler,
    }


def _check(program: Program, code: toolkit.Code, arch: str) -> None:
    declared = {each.function: each.shared_bytes for each in code.usage}
    limit = 1024 * _SHARED_KIB.get(int(arch[3:].rstrip("af")), _MOST_SHARED_KIB)
    for launch in program.launches:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        shared = launch.shared_bytes + declared.get(launch.function, 0)
        for what, size, most in [
            ("threads in a block", threads, _MOST_THREADS),
            ("bytes of shared memory in a block", shared, limit),
            *(("blocks along an axis", blocks, most) for blocks, most in zip(launch.grid, _MOST_BLOCKS)),
        ]:
            if size > most:
                raise TooLarge(f"{launch.function} has {size} {what}, and {arch} has {most}")
