"""From a problem to a shared library. Importing this imports TVM and its compiler."""

from __future__ import annotations

import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc
from tvm.target import codegen

from tvmconvgrad import schedules
from tvmconvgrad.build import pipeline
from tvmconvgrad.build.cpu_features import in_system_words
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.spec import Problem
from tvmconvgrad.targets import Target


class MissingLinker(RuntimeError):
    """No C compiler was found to link a kernel with."""


def compile_problem(problem: Problem, target: Target, schedule: str | None = None) -> tuple[bytes, dict[str, Any]]:
    """Compile a problem; returns the shared library and what there is to know of it, as JSON's types.

    Raises ValueError when the schedule or the target's CPU is unknown, MissingLinker without a C compiler.
    """
    begin = time.perf_counter()
    scheduled, executable = build(problem, target, schedule)
    library = _link(executable)
    facts = {
        "problem": str(problem),
        "schedule": str(scheduled),
        "workspace_bytes": workspace_bytes(scheduled),
        "requires": sorted(required_features(target)),
        "build_seconds": round(time.perf_counter() - begin, 3),
    }
    return library, facts


def build(problem: Problem, target: Target, schedule: str | None = None) -> tuple[Scheduled, Any]:
    """The scheduled program and TVM's executable of it."""
    _check_cpu(target)
    scheduled = schedules.schedule(problem, target, schedule)
    tvm_target = tvm.target.Target(target.to_dict())
    return scheduled, tvm.compile(scheduled.module, target=tvm_target, tir_pipeline=pipeline.NAME)


def required_features(target: Target) -> set[str]:
    """What the code may use of the CPU, in the operating system's words."""
    return in_system_words(codegen.llvm_get_cpu_features(tvm.target.Target(target.to_dict())))


def workspace_bytes(scheduled: Scheduled) -> int:
    """Bytes of the memory that a call needs besides its arguments: packed operands and partial sums."""
    root = scheduled.module["main"].body.block
    kept = [buffer for buffer in root.alloc_buffers if buffer.scope() != "local"]
    return sum(prod(int(size) for size in buffer.shape) * 4 for buffer in kept)


def _check_cpu(target: Target) -> None:
    if target.mcpu and not codegen.llvm_is_valid_cpu(target.mcpu, target.mtriple or codegen.llvm_get_system_triple()):
        raise ValueError(f"target: mcpu {target.mcpu!r} of {str(target)!r} is unknown to LLVM")


def _link(executable: Any) -> bytes:
    if cc.get_cc() is None:
        raise MissingLinker("a kernel is linked by a C compiler and none was found: install gcc or clang")
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        path = Path(folder, "kernel.so")
        executable.export_library(str(path), fcompile=cc.create_shared)
        return path.read_bytes()
