"""A pass for strided masked stores, as the output phases of a strided data gradient need them.

LLVM stores a strided vector lane by lane, and most of these stores wait for the same few cache lines. If the CPU has
masked stores, the lanes are spread over as many vectors as the stride is, and each vector is stored with one masked
store. The mask keeps the elements between the lanes: they belong to other phases, which another work item may be
writing. A single lane is stored alone: LLVM 22 may store four bytes for one of 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr, IRModule

from tvmconvgrad.machines.cpu import has_masked_stores, masks_16_bits
from tvmconvgrad.tir.passes.limits import MAX_STRIDE
from tvmconvgrad.tir.rewriting import rewritten


def with_strided_masked_stores(module: IRModule) -> IRModule:
    """`module` with masked stores in place of stores with a stride of two to `MAX_STRIDE` elements."""
    masked = masked_types(module)

    def strided(store: tirx.BufferStore) -> tirx.Stmt:
        place = store.indices[-1]
        if len(store.indices) != 1 or not isinstance(place, tirx.Ramp) or str(store.buffer.dtype) not in masked:
            return store
        if not isinstance(place.stride, tirx.IntImm) or not 1 < int(place.stride) <= MAX_STRIDE:
            return store
        return tirx.SeqStmt(list(_stores(store, place)))

    return rewritten(module, (tirx.BufferStore, strided)) if masked else module


def masked_types(module: IRModule) -> frozenset[str]:
    """The types of which the target's CPU stores some elements of a vector by a mask; bf16 is stored by its bits."""
    targets = [function.attrs["target"] for function in module.functions.values() if "target" in function.attrs]
    if not targets or not all(target.kind.name == "llvm" and has_masked_stores(target) for target in targets):
        return frozenset()
    return frozenset(["float32", *(("float16", "uint16") if all(map(masks_16_bits, targets)) else ())])


def masked_store(buffer: tirx.Buffer, first: Expr, vector: Expr, mask: Expr) -> tirx.Stmt:
    """A store of those lanes of a vector for which the mask is true, to `buffer` from element `first` on."""
    address = tirx.address_of(tirx.BufferLoad(buffer, [first]))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.masked.store", vector, address, mask))


def _stores(store: tirx.BufferStore, place: tirx.Ramp) -> Iterator[tirx.Stmt]:
    """The masked stores that cover all elements from the first lane's to the last one's; a single lane is stored
    alone."""
    stride, lanes = int(place.stride), int(place.lanes)
    value = tirx.Var("lanes", f"{store.buffer.dtype}x{lanes}")
    yield tirx.Bind(value, store.value)
    for begin in range(0, stride * lanes, lanes):
        stored = [element for element in range(begin, begin + lanes) if element % stride == 0]
        if len(stored) == 1:
            one = tirx.Shuffle([value], [tirx.IntImm("int32", stored[0] // stride)])
            yield tirx.BufferStore(store.buffer, one, [place.base + stored[0]])
            continue
        taken = [tirx.IntImm("int32", element // stride) for element in range(begin, begin + lanes)]
        elements = tirx.Ramp(tirx.IntImm("int64", begin), tirx.IntImm("int64", 1), lanes)
        mask = tirx.EQ(elements % _all(stride, lanes), _all(0, lanes))
        yield masked_store(store.buffer, place.base + begin, tirx.Shuffle([value], taken), mask)


def _all(value: int, lanes: int) -> Expr:
    return tirx.Broadcast(tirx.IntImm("int64", value), lanes)
