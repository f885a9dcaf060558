"""A pass for software prefetch in loops that copy, after they are vectorised.

    for i: copy[i] = data[i]    ->    for i: copy[i] = data[i]; prefetch(data[i + distance])

A schedule annotates the loop by `PREFETCH` or `PREFETCH_FAR`, with the distance in elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import DataType, tirx
from tvm.ir import Expr, TensorLoad
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.tir.annotations import PREFETCH, PREFETCH_FAR
from tvmconvgrad.tir.rewriting import nodes

_CACHES = {PREFETCH: 1, PREFETCH_FAR: 2}


def prefetch(buffer: tirx.Buffer, index: Sequence[Expr], write: bool = False, cache: int = 1) -> tirx.Stmt:
    """A prefetch of the cache line at `index` into L1 or L2 (`cache` 1 or 2), to read it, or to `write` it. The index
    may lie outside of the buffer."""
    address = tirx.address_of(tirx.BufferLoad(buffer, list(index)))
    arguments = (tirx.IntImm("int32", value) for value in (int(write), 4 - cache, 1))  # 3: the L1 cache; 1: it is data
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *arguments))


def with_prefetches(marked: tirx.AttrStmt) -> tirx.Stmt:
    """An annotated loop in which each store is followed by prefetches of the lines that its loads will read later."""
    if marked.attr_key not in _CACHES:
        return marked
    distance, cache = int(marked.value), _CACHES[marked.attr_key]
    fetched: list[TensorLoad] = []

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        loads = nodes(statement.value, TensorLoad)
        vectors = [load for load in loads if isinstance(load.indices[-1], tirx.Ramp) and not _share_line(load, fetched)]
        fetched.extend(vectors)
        fetches = [_line_ahead(load, distance + line, cache) for load in vectors for line in _lines(load)]
        return tirx.SeqStmt([statement, *fetches]) if fetches else statement

    return structural_map(marked.body, (tirx.BufferStore, store))


def _line(load: TensorLoad) -> int:
    """The elements of a cache line."""
    return int(CACHE_LINE * 8 // DataType(str(load.source.dtype)).bits)


def _lines(load: TensorLoad) -> range:
    """The offsets of a vector's cache lines, in elements."""
    return range(0, int(load.indices[-1].lanes), _line(load))


def _share_line(load: TensorLoad, fetched: list[TensorLoad]) -> bool:
    """Whether a vector lies within a cache line's length of the begin of one that is fetched."""
    for other in fetched:
        if other.source.same_as(load.source):
            distance = Analyzer().simplify(load.indices[-1].base - other.indices[-1].base)
            if isinstance(distance, tirx.IntImm) and 0 <= int(distance) < _line(load):
                return True
    return False


def _line_ahead(load: TensorLoad, distance: int, cache: int) -> tirx.Stmt:
    """Fetch the line `distance` elements after a vector's first one."""
    *outer, vector = load.indices
    return prefetch(load.source, [*outer, vector.base + distance], cache=cache)
