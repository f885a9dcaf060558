"""From a scheduled program to CUDA's C++ and its launches. Importing this imports TVM; it needs no CUDA at all.

TVM splits a program into functions for the GPU and one for the host that launches them. All shapes are numbers, so the
host's part is no more than a list: it is kept as one (runtime/cuda/launches.py), and TVM's runtime is not needed to
run it. That runtime would take the workspace from a pool for each thread of the host, which knows no streams: two calls
on two streams would share it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import DataType, tirx
from tvm.s_tir import pipeline as _s_tir_pipeline  # noqa: F401 -- registers the pipeline
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvmconvgrad.runtime.cuda.launches import ALIGNMENT, TENSORS, Argument, Extent, Launch
from tvmconvgrad.schedules.rewriting import nodes
from tvmconvgrad.targets import Target

_SPLITS = "tirx.SplitHostDevice"
_SHARED = "tirx.use_dyn_shared_memory"
_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Program:
    """CUDA's C++ of a kernel, and what a call launches of it."""

    source: str
    launches: tuple[Launch, ...]
    workspace_bytes: int


def generate(module: tvm.IRModule, target: Target) -> Program:
    """The code of a scheduled program of one function on (first, second, out)."""
    found = tvm.target.Target(target.to_dict())
    bound = tirx.transform.BindTarget(found.with_host(tvm.target.Target("llvm")))(module)
    lower, _, finalize = tirx.get_tir_pipeline("s_tir")
    host = _Host()
    with tvm.transform.PassContext(instruments=[host]):
        _, devices = split_host_device_mods(lower(bound))
    (device,) = devices.values()
    with _without_compiling():
        code = codegen_build(finalize()(device), found)
    return Program(code.inspect_source("cuda"), tuple(host.launches), host.workspace_bytes)


@tvm.instrument.pass_instrument
class _Host:
    """Reads the launches out of the host's part, where it has just been split off."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.workspace_bytes = 0

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM."""
        if info.name != _SPLITS:
            return
        (host,) = (f for f in module.functions.values() if f.attrs.get("tirx.is_entry_func"))
        places: dict[str, Argument] = dict(zip((param.name for param in host.params), TENSORS))
        for statement in _statements(host.body):
            if isinstance(statement, tirx.AllocBuffer):
                places[statement.buffer.name] = self.workspace_bytes
                self.workspace_bytes += -(-_bytes(statement.buffer) // ALIGNMENT) * ALIGNMENT
            elif isinstance(statement, tirx.DeclBuffer):
                places[statement.buffer.name] = places[_source(statement.data)]
            else:
                self.launches.append(_launch(statement.value, places))


def _statements(body: tirx.Stmt) -> Iterator[Any]:
    """What the host does, step by step. TypeError for what is no list of steps: a loop was not bound to a GPU's."""
    if isinstance(body, tirx.SeqStmt):
        for part in body.seq:
            yield from _statements(part)
    elif isinstance(body, (tirx.AllocBuffer, tirx.DeclBuffer)) or _is_launch(body):
        yield body
    elif not _is_nothing(body):
        raise TypeError(f"the host's part of a GPU's program has more than launches:\n{body}")


def _is_launch(statement: tirx.Stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, tvm.ir.Call) and value.op.name == "tirx.call_ffi_kernel"


def _is_nothing(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)


def _launch(call: Any, places: dict[str, Argument]) -> Launch:
    name, *values = call.args
    tags = [str(tag) for tag in call.attrs.launch_params]
    pointers, extents = values[: len(values) - len(tags)], values[len(values) - len(tags) :]
    sizes = {tag: int(extent) for tag, extent in zip(tags, extents)}
    return Launch(
        str(name.value),
        _extent(sizes, "blockIdx"),
        _extent(sizes, "threadIdx"),
        sizes.get(_SHARED, 0),
        tuple(places[_source(pointer)] for pointer in pointers),
    )


def _extent(sizes: dict[str, int], what: str) -> Extent:
    x, y, z = (sizes.get(f"{what}.{axis}", 1) for axis in _AXES)
    return x, y, z


def _source(pointer: Any) -> str:
    """The name of the buffer whose address this is."""
    (buffer,) = nodes(pointer, tirx.Var)
    return str(buffer.name)


def _bytes(buffer: tirx.Buffer) -> int:
    element = DataType(str(buffer.dtype))
    return prod(int(extent) for extent in buffer.shape) * int(element.lanes * element.bits) // 8


@contextmanager
def _without_compiling() -> Iterator[None]:
    """TVM gives the source where its runtime for CUDA is missing, and else compiles it at once, unless it is told to
    do as if that were missing."""
    name = "TVM_COMPILE_FORCE_FALLBACK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
