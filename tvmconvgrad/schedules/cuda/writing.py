"""A small language to write GPU programs in: loops, kernels, buffers and stores.

Software pipelining, fragments of tensor cores and padded shared memory cannot be derived by rewriting a schedule's
loops. So GPU kernels are written out as loops over an expression's elements. What an element is, with its padding,
phase and layout, still comes from the expression (expression_stages.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import DataType, tirx
from tvm.ir import IRModule, Range, TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconvgrad.nvidia import tensor_maps
from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.te.tensors import Index

Number: TypeAlias = Index | int
Body: TypeAlias = Callable[[Index], tirx.Stmt]

INDEX = "int64"
"""The type of all indices. TVM narrows those that fit to 32 bits, which are faster on GPUs."""

MAPS, CLUSTERS = "tvmconvgrad.maps", "tvmconvgrad.clusters"
"""Attributes of a program, as JSON: for each tensor map by name its tensor and content; and for each kernel by its
number in the program the blocks of its clusters."""

THREADS = 256
"""Threads of a block of kernels whose threads share nothing. Chosen, not measured: a few such blocks fill an SM."""

_AXES = ("blockIdx.x", "threadIdx.x")


def number(value: Number) -> Index:
    """An index from a Python integer; an index as it is."""
    return tirx.IntImm(INDEX, value) if isinstance(value, int) else value


def seq(*statements: tirx.Stmt | None) -> tirx.Stmt:
    """One statement after the other; those that are None are left out."""
    kept = [statement for statement in statements if statement is not None]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def loop(name: str, extent: int, body: Body, together: int | None = None) -> tirx.Stmt:
    """A loop; with a single step, its body. `together` tells the compiler how many steps to unroll."""
    return _loop(name, extent, tirx.ForKind.SERIAL, body, {"pragma_unroll": together} if together else {})


def loop_of(var: tirx.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """A loop over a variable that its body already uses."""
    return tirx.For(var, number(0), number(extent), tirx.ForKind.SERIAL, body)


def unrolled(name: str, extent: int, body: Body) -> tirx.Stmt:
    """An unrolled loop, so that arrays that its steps index stay in registers."""
    return _loop(name, extent, tirx.ForKind.UNROLLED, body)


def vectorized(name: str, extent: int, body: Body) -> tirx.Stmt:
    """A loop whose steps are the lanes of vectors."""
    return _loop(name, extent, tirx.ForKind.VECTORIZED, body)


def _loop(name: str, extent: int, kind: tirx.ForKind, body: Body, notes: Mapping[str, int] | None = None) -> tirx.Stmt:
    if extent == 1:
        return body(number(0))
    var = tirx.Var(name, INDEX)
    return tirx.For(var, number(0), number(extent), kind, body(var), annotations=notes)


def when(conditions: Sequence[Index], statement: tirx.Stmt) -> tirx.Stmt:
    """A statement under conditions, which are nested in their order."""
    for condition in reversed(conditions):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def every(*conditions: Index) -> Index:
    """Whether all conditions hold, as 0 or 1, without a branch: a branch would end the basic block within which the
    compiler reorders instructions to hide latency."""
    found = tirx.const(1, "int32")
    for condition in conditions:
        parts = every(condition.a, condition.b) if isinstance(condition, tirx.And) else condition.astype("int32")
        found = tirx.bitwise_and(found, parts)
    return found


def below(index: Index, bound: int, extent: int) -> list[Index]:
    """The condition index < bound, unless index < extent implies it."""
    return [index < bound] if bound < extent else []


def memory(name: str, shape: Sequence[int], dtype: str, scope: str, alignment: int = 64) -> tirx.Buffer:
    """A buffer, aligned to so many bytes. `scope` is "global" for workspace, "shared.dyn" for a block's shared memory,
    or "local" for a thread's registers."""
    extents = [number(extent) for extent in shape]
    return tirx.decl_buffer(extents, dtype, name, scope=scope, data_alignment=alignment)


def view(buffer: tirx.Buffer, dtype: str) -> tuple[tirx.Buffer, tirx.Stmt]:
    """The memory of a buffer as a buffer of another type, and the statement that declares the latter."""
    count = int(buffer.shape[0]) * DataType(str(buffer.dtype)).bits // DataType(dtype).bits
    seen = memory(f"{buffer.name}_{dtype}", (count,), dtype, buffer.scope(), buffer.data_alignment)
    return seen, tirx.DeclBuffer(seen, data=buffer.data)


def allocate(*buffers: tirx.Buffer) -> tirx.Stmt:
    """The allocation of buffers, which exist from here on."""
    return seq(*(tirx.AllocBuffer(buffer) for buffer in buffers))


def store(buffer: tirx.Buffer, value: Index, *indices: Number) -> tirx.Stmt:
    """Write an element."""
    return tirx.BufferStore(buffer, value, [number(index) for index in indices])


def load(buffer: tirx.Buffer, *indices: Number) -> Index:
    """Read an element."""
    return tirx.BufferLoad(buffer, [number(index) for index in indices])


def clear(buffer: tirx.Buffer) -> tirx.Stmt:
    """Fill registers with zeros."""
    nothing = tirx.const(0, str(buffer.dtype))
    return unrolled("i", int(buffer.shape[0]), lambda i: store(buffer, nothing, i))


def address(buffer: tirx.Buffer, lanes: int, *indices: Number) -> Index:
    """The address of `lanes` contiguous elements from the index on. All of them are named, since TVM shrinks a buffer
    to the elements that it sees used."""
    *outer, first = (number(index) for index in indices)
    return tirx.address_of(load(buffer, *outer, tirx.Ramp(first, number(1), lanes) if lanes > 1 else first))


def unflatten(flat: Index, extents: Sequence[int]) -> list[Index]:
    """The index along each axis of the element with the number `flat`, in a tensor of these extents, last axis
    innermost."""
    found: list[Index] = []
    rest = flat
    for extent in reversed(extents[1:]):
        found.insert(0, tirx.floormod(rest, number(extent)) if extent > 1 else number(0))
        rest = tirx.floordiv(rest, number(extent)) if extent > 1 else rest
    return [rest, *found]


def kernel(blocks: int, threads: int, body: Callable[[Index, Index], tirx.Stmt]) -> tirx.Stmt:
    """A kernel of so many blocks of so many threads; `body` makes the code of a block's thread."""
    block, thread = (tirx.Var(name.replace(".", "_"), INDEX) for name in _AXES)
    statement = body(block, thread)
    for var, extent, axis in zip((thread, block), (threads, blocks), reversed(_AXES)):
        bound = tirx.IterVar(None, tirx.Var(axis, INDEX), tirx.IterVar.ThreadIndex, axis)
        statement = tirx.For(var, number(0), number(extent), tirx.ForKind.THREAD_BINDING, statement, bound)
    return statement


def elementwise(count: int, body: Body) -> tirx.Stmt | None:
    """A kernel with a thread for each of `count` elements; None where there is no element."""
    if not count:
        return None
    blocks = -(-count // THREADS)

    def element(block: Index, thread: Index) -> tirx.Stmt:
        at = block * THREADS + thread
        return when(below(at, count, blocks * THREADS), body(at))

    return kernel(blocks, THREADS, element)


@dataclass(frozen=True)
class Mapped:
    """A TMA tensor map in a program: a parameter of its own, whose content the program's attributes give."""

    buffer: tirx.Buffer
    of: tirx.Buffer
    content: TensorMap

    @classmethod
    def make(cls, name: str, of: tirx.Buffer, content: TensorMap) -> Mapped:
        """The map of a tensor."""
        return cls(memory(name, (tensor_maps.SIZE,), "uint8", "global"), of, content)

    @property
    def address(self) -> Index:
        """The map's address in the kernel."""
        return tirx.address_of(load(self.buffer, 0))

    @property
    def begin(self) -> Index:
        """The address of the map's tensor. A kernel names it so that TVM keeps the tensor's memory until then."""
        return tirx.address_of(load(self.of, *(0 for _ in self.of.shape)))


def program(
    parameters: Sequence[tirx.Buffer],
    workspace: Sequence[tirx.Buffer],
    *kernels: tirx.Stmt | None,
    maps: Sequence[Mapped] = (),
    clusters: Mapping[int, int] | None = None,
) -> IRModule:
    """A program of kernels that run one after the other; the last of its parameters is the result.

    `maps` are its tensor maps. `clusters` has the blocks of a cluster for kernels that run in clusters, by the number
    of the kernel in the program.
    """
    body = seq(*kernels)
    *inputs, result = parameters
    reads, writes = [_everything(buffer) for buffer in inputs], [_everything(result)]
    root = SBlock([], reads, writes, "root", body, None, list(workspace), None, {})
    realize = SBlockRealize([], tirx.const(True), root)
    function = tirx.PrimFunc([*parameters, *(each.buffer for each in maps)], realize)
    contents = {str(each.buffer.name): (str(each.of.name), each.content.to_dict()) for each in maps}
    attributes = {MAPS: json.dumps(contents), CLUSTERS: json.dumps(clusters or {})}
    return IRModule({"main": function.with_attrs({"global_symbol": "main", "tirx.noalias": True, **attributes})})


def _everything(buffer: tirx.Buffer) -> Any:
    ranges = [Range.from_min_extent(number(0), extent) for extent in buffer.shape]
    return TensorRegion(buffer, ranges, tirx.BufferRegionType())
