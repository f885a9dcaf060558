"""From a scheduled program to CUDA's C++ and its launches. Importing this imports TVM; it needs no CUDA at all.

TVM splits a program into functions for the GPU and one for the host that launches them. All shapes are numbers, so the
host's part is no more than a list: it is kept as one (nvidia/launches.py), and TVM's runtime is not needed to
run it. That runtime would take the workspace from a pool for each thread of the host, which knows no streams: two calls
on two streams would share it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import DataType, tirx
from tvm.s_tir import pipeline as _s_tir_pipeline  # noqa: F401 -- registers the pipeline
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.nvidia import tensor_maps
from tvmconvgrad.nvidia.launches import ALIGNMENT, TENSORS, Argument, Extent, Launch
from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.schedules.cuda.writing import CLUSTERS, MAPS
from tvmconvgrad.tir.rewriting import nodes

_MAP = f"""\
struct alignas({tensor_maps.ALIGNMENT}) tvmconvgrad_tensor_map {{
  unsigned char bytes[{tensor_maps.SIZE}];
  __device__ const unsigned char& operator[](int i) const {{ return bytes[i]; }}
}};
"""
_WAIT = '  asm volatile("griddepcontrol.wait;\\n" ::: "memory");\n'
_LET_BEGIN = '  asm volatile("griddepcontrol.launch_dependents;\\n" ::: "memory");\n'
"""What a kernel begins with: it waits until the one before has ended, and lets the blocks of the one behind it begin,
which wait in turn (PTX ISA 7.8, "griddepcontrol")."""
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
    found, (function,) = tvm.target.Target(target.to_dict()), module.functions.values()
    bound = tirx.transform.BindTarget(found.with_host(tvm.target.Target("llvm")))(module)
    lower, _, finalize = tirx.get_tir_pipeline("s_tir")
    host = _Host(json.loads(function.attrs.get(MAPS, "{}")))
    with tvm.transform.PassContext(instruments=[host]):
        _, devices = split_host_device_mods(lower(bound))
    (device,) = devices.values()
    with _without_compiling():
        code = codegen_build(finalize()(device), found)
    source = code.inspect_source("cuda")
    clusters = json.loads(function.attrs.get(CLUSTERS, "{}"))
    early = GpuMachine.of(found).has_dependent_launch
    launches = [replace(each, early=early and place > 0) for place, each in enumerate(host.launches)]
    for place, launch in enumerate(launches):
        is_last = launch is launches[-1]
        begins = (_WAIT if launch.early else "") + (_LET_BEGIN if early and not is_last else "")
        source = _finished(source, launch, clusters.get(str(place), 1), begins)
    return Program(source, tuple(launches), host.workspace_bytes)


@tvm.instrument.pass_instrument
class _Host:
    """Reads the launches out of the host's part, where it has just been split off."""

    def __init__(self, maps: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
        self.maps = maps
        self.launches: list[Launch] = []
        self.workspace_bytes = 0

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM."""
        if info.name != _SPLITS:
            return
        (host,) = (f for f in module.functions.values() if f.attrs.get("tirx.is_entry_func"))
        places: dict[str, Argument] = dict(zip((param.name for param in host.params), TENSORS))
        statements = list(_statements(host.body))
        for buffer in (each.buffer for each in statements if isinstance(each, tirx.AllocBuffer)):
            places[buffer.name] = self.workspace_bytes
            self.workspace_bytes += -(-_bytes(buffer) // ALIGNMENT) * ALIGNMENT
        for name, (of, content) in self.maps.items():
            places[name] = TensorMap.from_dict({**content, "tensor": places[of]})
        for statement in (each for each in statements if not isinstance(each, tirx.AllocBuffer)):
            if isinstance(statement, tirx.DeclBuffer):
                places[statement.buffer.name] = places[_source(statement.data)]
            else:
                self.launches.append(_launch(statement.value, places))


def _finished(source: str, launch: Launch, cluster: int, begins: str) -> str:
    """The code with what TVM has no words for: clusters, tensor maps, which it takes for pointers to bytes, and what a
    kernel begins with."""
    maps = [isinstance(argument, TensorMap) for argument in launch.arguments]

    def signature(match: re.Match[str]) -> str:
        before, parameters = match[1], match[2].split(", ")
        for place, parameter in enumerate(parameters):
            if maps[place]:
                parameters[place] = f"const __grid_constant__ tvmconvgrad_tensor_map {parameter.split()[-1]}"
        blocks = f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else ""
        begin = match[3] + (begins if "{" in match[3] else "")  # which a mere declaration does not have
        return f"__global__ void {blocks}{before}{launch.function}({', '.join(parameters)}){begin}"

    pattern = rf"__global__ void (__launch_bounds__\(\d+\) ){launch.function}\((.*?)\)(;| {{\n)"
    changed, count = re.subn(pattern, signature, source)
    assert count, f"{launch.function} has another signature:\n{source}"
    return changed if _MAP in source or not any(maps) else _MAP + changed


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
