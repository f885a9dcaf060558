"""From a problem to a shared library. Importing this imports TVM and its compiler."""

from __future__ import annotations

import functools
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm.support import cc
from tvm.target import codegen

from tvmconvgrad import schedules
from tvmconvgrad.build import pipeline
from tvmconvgrad.build.cpu_features import in_system_words
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.spec import Problem
from tvmconvgrad.targets import Target

_SERVICES = Path(__file__).with_name("services.c")
# Hidden: a symbol of the same name elsewhere in the process (TVM's own runtime) must not take its place.
_C_OPTIONS = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
_NO_LINKER = "a kernel is linked by a C compiler and none was found that works: install gcc or clang, or name it in CXX"


class MissingLinker(RuntimeError):
    """No C compiler was found to link a kernel with."""


def compile_problem(problem: Problem, target: Target, schedule: str | None = None) -> tuple[bytes, dict[str, Any]]:
    """Compile a problem; returns the shared library and what there is to know of it, as JSON's types.

    Raises ValueError when the schedule or the target's CPU is unknown, MissingLinker without a C compiler.
    """
    begin = time.perf_counter()
    built = build(problem, target, schedule)
    library = _link(built.executable)
    facts = {
        "problem": str(problem),
        "schedule": str(built.scheduled),
        "workspace_bytes": built.workspace_bytes,
        "requires": sorted(required_features(target)),
        "build_seconds": round(time.perf_counter() - begin, 3),
    }
    return library, facts


class Built(NamedTuple):
    """A compiled problem that is not linked yet.

    `workspace_bytes` is the memory that a call on one thread needs besides its arguments: packed operands and partial
    sums. Each further thread needs its own of what a task allocates for itself.
    """

    scheduled: Scheduled
    executable: Any
    workspace_bytes: int


def build(problem: Problem, target: Target, schedule: str | None = None) -> Built:
    """Generate the code of a problem, also for a machine that is not this one. ValueError as in compile_problem."""
    _check_cpu(target)
    scheduled = schedules.schedule(problem, target, schedule)
    workspace = pipeline.WorkspaceMeter()
    with tvm.transform.PassContext(disabled_pass=list(pipeline.DISABLED), instruments=[workspace]):
        executable = tvm.compile(scheduled.module, target=_tvm_target(target), tir_pipeline=pipeline.NAME)
    return Built(scheduled, executable, workspace.bytes)


def required_features(target: Target) -> set[str]:
    """What the code may use of the CPU, in the operating system's words."""
    return in_system_words(codegen.llvm_get_cpu_features(_tvm_target(target)))


def _check_cpu(target: Target) -> None:
    if target.mcpu and not codegen.llvm_is_valid_cpu(target.mcpu, target.mtriple or codegen.llvm_get_system_triple()):
        raise ValueError(f"target: mcpu {target.mcpu!r} of {str(target)!r} is unknown to LLVM")
    wanted = [feature for feature in target.mattr if feature.startswith("+")]
    known = {f"+{feature}" for feature in codegen.llvm_get_cpu_features(_tvm_target(target))} if wanted else set()
    for feature in wanted:
        if feature not in known:
            raise ValueError(f"target: feature {feature} of {str(target)!r} is unknown to LLVM for this architecture")


def _tvm_target(target: Target) -> tvm.target.Target:
    return tvm.target.Target(target.to_dict())


def _link(executable: Any) -> bytes:
    compiler = cc.get_cc()
    if compiler is None:
        raise MissingLinker(_NO_LINKER)
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        path, services = Path(folder, "kernel.so"), Path(folder, "services.o")
        services.write_bytes(_services(compiler))
        executable.export_library(str(path), addons=[str(services)], fcompile=cc.create_shared, options=["-pthread"])
        return path.read_bytes()


@functools.cache
def _services(compiler: str) -> bytes:
    """The object file of services.c, compiled once in a process."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        path = Path(folder, "services.o")
        command = [compiler, *_C_OPTIONS, "-c", str(_SERVICES), "-o", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as reason:
            raise MissingLinker(f"{_NO_LINKER}; {compiler} cannot be run: {reason}") from None
        except subprocess.CalledProcessError as reason:
            raise MissingLinker(f"{_NO_LINKER}; {' '.join(command)} failed:\n{reason.stderr}") from None
        return path.read_bytes()
