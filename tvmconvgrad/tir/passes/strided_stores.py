"""A pass for vectors that are stored some elements apart, as the results of a strided data gradient's phases are.

LLVM stores such a vector lane by lane: as many stores as lanes, and most of them wait for the same few lines. Where the
CPU has masked stores, the lanes are spread over as many vectors as the elements are apart, and each of these is stored
at once, but for the elements between them: those are other phases', which another task may be writing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr, IRModule
from tvm.target import Target

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.tir.annotations import MOST_APART
from tvmconvgrad.tir.rewriting import rewritten


def with_spread_stores(module: IRModule) -> IRModule:
    """`module` with masked stores in place of those of f32 that are two to four elements apart."""
    targets = [function.attrs["target"] for function in module.functions.values() if "target" in function.attrs]
    if not targets or not all(map(_has_masked_stores, targets)):
        return module
    return rewritten(module, (tirx.BufferStore, _spread))


def _has_masked_stores(target: Target) -> bool:
    return target.kind.name == "llvm" and CpuMachine.of(target).masked_stores


def _spread(store: tirx.BufferStore) -> tirx.Stmt:
    place = store.indices[-1]
    if len(store.indices) != 1 or not isinstance(place, tirx.Ramp) or store.buffer.dtype != "float32":
        return store
    if not isinstance(place.stride, tirx.IntImm) or not 1 < int(place.stride) <= MOST_APART:
        return store
    return tirx.SeqStmt(list(_stores(store, place)))


def _stores(store: tirx.BufferStore, place: tirx.Ramp) -> Iterator[tirx.Stmt]:
    """The vectors of elements from the first lane's on; where the last of them ends, all elements have been met."""
    apart, lanes = int(place.stride), int(place.lanes)
    value = tirx.Var("lanes", f"{store.buffer.dtype}x{lanes}")
    yield tirx.Bind(value, store.value)
    for begin in range(0, apart * lanes, lanes):
        taken = [tirx.IntImm("int32", element // apart) for element in range(begin, begin + lanes)]
        elements = tirx.Ramp(tirx.IntImm("int64", begin), tirx.IntImm("int64", 1), lanes)
        mask = tirx.EQ(elements % _all(apart, lanes), _all(0, lanes))
        address = tirx.address_of(tirx.BufferLoad(store.buffer, [place.base + begin]))
        arguments = (tirx.Shuffle([value], taken), address, mask)
        yield tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.masked.store", *arguments))


def _all(value: int, lanes: int) -> Expr:
    return tirx.Broadcast(tirx.IntImm("int64", value), lanes)
