"""From a problem to a shared library for a CPU. Importing this imports TVM and its compiler."""

from __future__ import annotations

import difflib
import functools
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm.target import codegen

from tvmconvgrad.compiler import pipeline
from tvmconvgrad.compiler.linking import check_compiler, link
from tvmconvgrad.compiler.workspace import WorkspaceMeter
from tvmconvgrad.files.temporary import check_room, memory_file, temporary_folder
from tvmconvgrad.machines.cpu_features import foreign_to, in_system_words
from tvmconvgrad.machines.host import ARCHITECTURES
from tvmconvgrad.machines.targets import Target, target_architecture
from tvmconvgrad.machines.tile_permission import FEATURES
from tvmconvgrad.machines.triples import linux_triple
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.schedules.chosen import scheduled_as
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import nearest

_CONFIG = {"tirx.disable_assert": True, "tirx.enable_buffer_level_predication": False}
"""Whoever calls a kernel has checked its arguments (runtime/kernel.py), and passes them on as it was compiled for them
(calling.c). Code that looks at them once more would take a tenth of the time to compile.

For CPUs with SVE, TVM would turn conditions on a vector's lanes into predicates, by an intrinsic whose arguments have
the wrong type for 64-bit indices: LLVM refuses the program."""

_BF16 = {"cl-opt": ["-vectorize-loops:bool=false"]}
"""With bf16, loops have the vectors that the schedules wrote, and LLVM makes no others. Where it masks all lanes of a
vector but one, and truncates bf16 from 32 bits, LLVM 22 stores four bytes, the last two behind the element. It makes
such masks for loops of, say, 9 elements, and for conditional stores."""


def compile_problem(
    problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Compile a problem; returns the shared library and what there is to know of it, as JSON's types.

    Raises ValueError when the schedule or the target's CPU is unknown, ChoiceRefused when a search's choice does not
    apply, MissingLinker without a C compiler, TemporaryFolderError without room on the disk.
    """
    begin = time.perf_counter()
    check_cpu(target)
    check_compiler(target_architecture(target))  # before seconds of compiling
    built = build(problem, target, schedule, choice)
    library = link(_object(built.executable), target_architecture(target))
    return library, _facts(problem, target, built, begin)


def compile_object(
    problem: Problem, target: Target, symbol: str, choice: Choice | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Compile a problem to an object file, to be linked with others; and the facts that compile_problem gives.

    Its entry is __tvm_ffi_SYMBOL. Besides, `workspace_pieces` and `work_item_pieces` are the sizes of what it
    allocates. Raises what compile_problem raises.
    """
    begin = time.perf_counter()
    built = build(problem, target, choice=choice, symbol=symbol)
    code = _object(built.executable)
    pieces = {"workspace_pieces": built.workspace.sizes, "work_item_pieces": built.workspace.work_item_sizes}
    return code, _facts(problem, target, built, begin) | pieces


def _facts(problem: Problem, target: Target, built: Built, begin: float) -> dict[str, Any]:
    return {
        "problem": str(problem),
        "schedule": str(built.scheduled),
        "workspace_bytes": built.workspace_bytes,
        "requires": sorted(required_features(target)),
        "build_seconds": round(time.perf_counter() - begin, 3),
    }


class Built(NamedTuple):
    """A compiled problem that is not linked yet."""

    scheduled: Scheduled
    executable: Any
    workspace: WorkspaceMeter

    @property
    def workspace_bytes(self) -> int:
        """The memory that a call on one thread needs besides its arguments: packed operands and partial sums.

        Each further thread needs its own of what a work item allocates for itself.
        """
        return self.workspace.bytes

    @property
    def source(self) -> None:
        """LLVM's code is not written by people."""

    def assembly(self) -> str:
        """The target's assembly."""
        return str(self.executable.mod.inspect_source("s"))


def build(
    problem: Problem,
    target: Target,
    schedule: str | None = None,
    choice: Choice | None = None,
    symbol: str = "main",
) -> Built:
    """Generate the code of a problem, also for a machine that is not this one. ValueError as in compile_problem."""
    check_cpu(target)
    return build_scheduled(scheduled_as(problem, target, schedule, choice), target, symbol)


def build_scheduled(scheduled: Scheduled, target: Target, symbol: str = "main") -> Built:
    """Generate the code of a scheduled problem, for an `llvm` target."""
    workspace, expression = WorkspaceMeter(), scheduled.expression
    tensors = (*expression.inputs, *expression.results, *expression.bias)
    has_bf16 = any(tensor.dtype == "bfloat16" for tensor in tensors)
    options = {"opt-level": scheduled.opt_level, **(_BF16 if has_bf16 else {})}
    module = _with_symbol(scheduled.module, symbol)
    with tvm.transform.PassContext(config=_CONFIG, instruments=[workspace]):
        executable = tvm.compile(module, target=_tvm_target(target, options), tir_pipeline=pipeline.NAME)
    return Built(scheduled, executable, workspace)


def compile_scheduled(scheduled: Scheduled, target: Target) -> bytes:
    """The shared library of a scheduled problem. MissingLinker without a C compiler."""
    return link(_object(build_scheduled(scheduled, target).executable), target_architecture(target))


def _with_symbol(module: tvm.IRModule, symbol: str) -> tvm.IRModule:
    (function,) = module.functions.values()
    return tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)}, attrs=module.attrs)


def required_features(target: Target) -> set[str]:
    """What the code may use of the CPU, in the operating system's words."""
    found = in_system_words(_features(target))
    return found if target.has_tile_registers else found - FEATURES


def check_cpu(target: Target) -> None:
    """ValueError for a CPU, or a feature of one, that LLVM does not know, or that it has no code for."""
    triple = target.mtriple or codegen.llvm_get_system_triple()
    if target.mcpu and not codegen.llvm_is_valid_cpu(target.mcpu, triple):
        raise ValueError(f"target: mcpu {target.mcpu!r} of {str(target)!r} is {_what_it_is(target.mcpu, triple)}")
    features = _features(target)
    # Before they are looked for: a CPU without its vectors also lacks the features that need them.
    foreign = foreign_to(target_architecture(target), features)
    if foreign:
        raise ValueError(f"target: {str(target)!r} {foreign}")
    for feature in target.mattr:
        name = feature[1:]
        known = features if feature.startswith("+") else _features(replace(target, mattr=(f"+{name}",)))
        if name not in known:
            unknown = f"is unknown to LLVM for this architecture{nearest(name, known)}"
            raise ValueError(f"target: feature {feature} of {str(target)!r} {unknown}")


@functools.lru_cache(maxsize=64)
def _features(target: Target) -> frozenset[str]:
    """What a target has, in LLVM's words."""
    return frozenset(map(str, codegen.llvm_get_cpu_features(_tvm_target(target))))


def _what_it_is(mcpu: str, triple_of: str) -> str:
    for architecture in sorted(set(ARCHITECTURES.values())):
        triple = linux_triple(architecture)
        if codegen.llvm_is_valid_cpu(mcpu, triple):
            return f"a CPU of {architecture}, expected with -mtriple={triple}"
    close = difflib.get_close_matches(mcpu, cpus(triple_of), n=3)
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    return f"unknown to LLVM{hint}; `tvmconvgrad info --cpus` lists its names"


def cpus(triple: str) -> list[str]:
    """LLVM's names of the CPUs of a triple's architecture."""
    return sorted(map(str, codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))))


def _tvm_target(target: Target, options: Mapping[str, Any] | None = None) -> tvm.target.Target:
    return tvm.target.Target({**target.to_dict(), **(options or {})})


def _object(executable: Any) -> bytes:
    """The object file. LLVM ends the process where a disk is full, so that it goes to memory, if there are such files.

    Another file is named by its folder's number: TVM takes paths of UTF-8 alone.
    """
    handle = memory_file()
    if handle is not None:
        with open(handle, "rb") as file:
            executable.mod.write_to_file(f"/proc/self/fd/{handle}", "o")
            return file.read()
    with temporary_folder() as folder:
        check_room(folder)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            executable.mod.write_to_file(f"/proc/self/fd/{number}/kernel.o", "o")
        finally:
            os.close(number)
        return Path(folder, "kernel.o").read_bytes()
