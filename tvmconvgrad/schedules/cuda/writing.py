"""Writing a GPU program: loops, kernels, memory and stores, in few words.

Copies that run ahead, fragments of tensor cores and padded shared memory leave nothing for a schedule's rewrites to
derive. So the kernels here are written out as loops over an expression's elements, and the mathematics of an element,
with its pads, phases and layouts, comes from the expression.
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
"""All indices; TVM narrows those that fit to 32 bits, which GPUs are made for."""

MAPS, CLUSTERS = "tvmconvgrad.maps", "tvmconvgrad.clusters"
"""Attributes of a program, as JSON: by the names of its tensor maps what they are of and what they say, and how many
blocks are in a cluster of its kernels, by their places."""

_AXES = ("blockIdx.x", "threadIdx.x")


def number(value: Number) -> Index:
    """An index from Python's integer, or as it is."""
    return tirx.IntImm(INDEX, value) if isinstance(value, int) else value


def seq(*statements: tirx.Stmt | None) -> tirx.Stmt:
    """One statement after the other; those that are None are left out."""
    kept = [statement for statement in statements if statement is not None]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def loop(name: str, extent: int, body: Body, together: int | None = None) -> tirx.Stmt:
    """A loop; of a single step, its body. The compiler is told to write out so many steps `together`."""
    return _loop(name, extent, tirx.ForKind.SERIAL, body, {"pragma_unroll": together} if together else {})


def loop_of(var: tirx.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """A loop of a variable that its body has already."""
    return tirx.For(var, number(0), number(extent), tirx.ForKind.SERIAL, body)


def unrolled(name: str, extent: int, body: Body) -> tirx.Stmt:
    """A loop whose steps are all written out, so that arrays that they index stay in registers."""
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
    """A statement under conditions, each inside of the one before."""
    for condition in reversed(conditions):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def every(*conditions: Index) -> Index:
    """Whether all conditions hold, as 0 or 1. All of them are computed: a branch around one would end the piece of code
    in which the compiler orders what is done meanwhile."""
    found = tirx.const(1, "int32")
    for condition in conditions:
        parts = every(condition.a, condition.b) if isinstance(condition, tirx.And) else condition.astype("int32")
        found = tirx.bitwise_and(found, parts)
    return found


def below(index: Index, bound: int, extent: int) -> list[Index]:
    """The condition index < bound, unless index < extent implies it."""
    return [index < bound] if bound < extent else []


def memory(name: str, shape: Sequence[int], dtype: str, scope: str, alignment: int = 64) -> tirx.Buffer:
    """Memory of a scope, aligned to so many bytes: "global" for workspace, "shared.dyn" of a block, "local" for
    registers."""
    extents = [number(extent) for extent in shape]
    return tirx.decl_buffer(extents, dtype, name, scope=scope, data_alignment=alignment)


def view(buffer: tirx.Buffer, dtype: str) -> tuple[tirx.Buffer, tirx.Stmt]:
    """The memory of a buffer as elements of another type, and the statement that declares it."""
    count = int(buffer.shape[0]) * DataType(str(buffer.dtype)).bits // DataType(dtype).bits
    seen = memory(f"{buffer.name}_{dtype}", (count,), dtype, buffer.scope(), buffer.data_alignment)
    return seen, tirx.DeclBuffer(seen, data=buffer.data)


def allocate(*buffers: tirx.Buffer) -> tirx.Stmt:
    """Have buffers from here on."""
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
    """Where `lanes` elements lie, of which the index is the first one's. TVM keeps as much memory as it sees used."""
    *outer, first = (number(index) for index in indices)
    return tirx.address_of(load(buffer, *outer, tirx.Ramp(first, number(1), lanes) if lanes > 1 else first))


def unflatten(flat: Index, extents: Sequence[int]) -> list[Index]:
    """The index along each axis of an element of a tensor of these extents, the last axis innermost."""
    found: list[Index] = []
    rest = flat
    for extent in reversed(extents[1:]):
        found.insert(0, tirx.floormod(rest, number(extent)) if extent > 1 else number(0))
        rest = tirx.floordiv(rest, number(extent)) if extent > 1 else rest
    return [rest, *found]


def kernel(blocks: int, threads: int, body: Callable[[Index, Index], tirx.Stmt]) -> tirx.Stmt:
    """A kernel of so many blocks of threads; `body` is given the block and the thread."""
    block, thread = (tirx.Var(name.replace(".", "_"), INDEX) for name in _AXES)
    statement = body(block, thread)
    for var, extent, axis in zip((thread, block), (threads, blocks), reversed(_AXES)):
        bound = tirx.IterVar(None, tirx.Var(axis, INDEX), tirx.IterVar.ThreadIndex, axis)
        statement = tirx.For(var, number(0), number(extent), tirx.ForKind.THREAD_BINDING, statement, bound)
    return statement


def elementwise(count: int, threads: int, body: Body) -> tirx.Stmt | None:
    """A kernel with a thread for each of `count` elements; None where there is no element."""
    if not count:
        return None
    blocks = -(-count // threads)

    def element(block: Index, thread: Index) -> tirx.Stmt:
        at = block * threads + thread
        return when(below(at, count, blocks * threads), body(at))

    return kernel(blocks, threads, element)


@dataclass(frozen=True)
class Mapped:
    """A tensor map in a program: a further parameter, whose content the function's attributes give."""

    buffer: tirx.Buffer
    of: tirx.Buffer
    content: TensorMap

    @classmethod
    def make(cls, name: str, of: tirx.Buffer, content: TensorMap) -> Mapped:
        """The map of a tensor."""
        return cls(memory(name, (tensor_maps.SIZE,), "uint8", "global"), of, content)

    @property
    def address(self) -> Index:
        """Where the kernel has it."""
        return tirx.address_of(load(self.buffer, 0))

    @property
    def begin(self) -> Index:
        """Where the tensor begins: a kernel names it, so that TVM keeps it until then."""
        return tirx.address_of(load(self.of, *(0 for _ in self.of.shape)))


def program(
    parameters: Sequence[tirx.Buffer],
    workspace: Sequence[tirx.Buffer],
    *kernels: tirx.Stmt | None,
    maps: Sequence[Mapped] = (),
    clusters: Mapping[int, int] | None = None,
) -> IRModule:
    """A program of kernels that run one after the other; the last one of its parameters is its result.

    They may be passed `maps`; some may run in clusters of more than one block, by their places.
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
