"""A pass for strided masked stores, as the output phases of a strided data gradient need them.

LLVM stores a strided vector lane by lane, and most of these stores wait for the same few cache lines. If the CPU has
masked stores, the lanes are spread over as many vectors as the stride is, and each vector is stored with one masked
store. The mask keeps the elements between the lanes: they belong to other phases, which another work item may be
writing. An element that is alone in its vector, or, of 16 bits, in half of it, is stored alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from tvm import tirx
from tvm.ir import Expr, IRModule

from tvmconvgrad.machines.cpu import has_masked_stores, masks_16_bits
from tvmconvgrad.tir.passes.limits import MAX_STRIDE
from tvmconvgrad.tir.rewriting import rewritten

_HALF = 8
"""The f32 of half a vector of AVX-512. Where LLVM 22 truncates to 16 bits as it stores, and stores a single element of
a vector, or of half of it, by a mask, it may write another one."""


def with_strided_masked_stores(module: IRModule) -> IRModule:
    """`module` with masked stores in place of stores with a stride of two to `MAX_STRIDE` elements."""
    masked = masked_types(module)

    def strided(store: tirx.BufferStore) -> tirx.Stmt:
        place = store.indices[-1]
        if len(store.indices) != 1 or not isinstance(place, tirx.Ramp) or str(store.buffer.dtype) not in masked:
            return store
        if not isinstance(place.stride, tirx.IntImm) or not 1 < int(place.stride) <= MAX_STRIDE:
            return store
        vector = tirx.Var("lanes", f"{store.buffer.dtype}x{place.lanes}")
        stores = masked_stores(store.buffer, place, vector, range(int(place.lanes)))
        return tirx.SeqStmt([tirx.Bind(vector, store.value), *stores])

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


def masked_stores(buffer: tirx.Buffer, place: tirx.Ramp, vector: Expr, stored: Collection[int]) -> Iterator[tirx.Stmt]:
    """The stores of some lanes of a vector, whose elements may be strided: masked ones of contiguous elements, and
    those of elements that must be stored alone."""
    stride, lanes = int(place.stride), int(place.lanes)
    width = lanes if str(buffer.dtype) == "float32" else min(lanes, _HALF)
    for begin in range(0, stride * lanes, lanes):
        elements = [lane * stride for lane in sorted(stored) if begin <= lane * stride < begin + lanes]
        counts = Counter(element // width for element in elements)
        alone = [element for element in elements if counts[element // width] == 1]
        for element in alone:
            one = tirx.Shuffle([vector], [tirx.IntImm("int32", element // stride)])
            yield tirx.BufferStore(buffer, one, [place.base + element])
        if len(alone) < len(elements):
            taken = [tirx.IntImm("int32", element // stride) for element in range(begin, begin + lanes)]
            spread = tirx.Shuffle([vector], taken) if stride > 1 else vector
            together = set(elements).difference(alone)
            mask = [tirx.IntImm("bool", element in together) for element in range(begin, begin + lanes)]
            yield masked_store(buffer, place.base + begin, spread, _concatenated(mask))


def _concatenated(scalars: Sequence[Expr]) -> Expr:
    return tirx.Shuffle(scalars, [tirx.IntImm("int32", lane) for lane in range(len(scalars))])
