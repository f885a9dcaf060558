"""How a scheduled program is lowered for LLVM: the list of passes.

They are those of TVM's that it needs, in TVM's order, and ours (tir/passes/), which turn annotated loops into vector
code. VectorizeLoop comes again after ours, for the vector loops that they leave. What differs from TVM besides:

1. Tensors may have any address. TVM promises LLVM that tensors are aligned to 64 bytes, without checking it, and vector
   moves would crash on NumPy arrays, which are often aligned to 16. Here LLVM is promised only the alignment of an
   element. On today's CPUs unaligned moves are as fast if the address happens to be aligned.
2. Indices stay 64-bit. With 32 bits each address needs a sign extension, LLVM computes these in vectors, and the
   register tile spills, which costs half of the speed.
3. Register tiles stay on the stack, which LLVM turns into registers. Above 1 KiB TVM would allocate memory from its
   runtime for every tile.
4. The conditions that leave out products with padding are set after memory is planned. TVM finds no constant bound for
   what is read under a condition, and each work item would allocate all of the data instead of the part that it packs.
5. Loops that pack data prefetch what they will copy a little later. A core's own prefetcher does not look beyond a
   page, and does not follow copies that go to many places.

TVM's own list (tvm/s_tir/pipeline.py) has 24 passes more: for GPUs, for what no schedule here annotates, and for common
subexpressions. LLVM finds those anyway: without that pass 718 kernels were as fast, and were built 5 ms sooner (an AMD
EPYC with Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvmconvgrad.tir.passes.buffers import aligned_to_elements, kept_on_stack
from tvmconvgrad.tir.passes.conditions import with_condition
from tvmconvgrad.tir.passes.masking import with_masked_loads
from tvmconvgrad.tir.passes.non_temporal import with_non_temporal_stores
from tvmconvgrad.tir.passes.pairs import with_pairs
from tvmconvgrad.tir.passes.peeling import peeled
from tvmconvgrad.tir.passes.prefetch import with_prefetches
from tvmconvgrad.tir.passes.rounding import with_roundings
from tvmconvgrad.tir.passes.staging import staged
from tvmconvgrad.tir.passes.strided_stores import with_strided_masked_stores
from tvmconvgrad.tir.passes.tiles import with_tiles
from tvmconvgrad.tir.passes.transposition.loops import with_transpositions
from tvmconvgrad.tir.rewriting import rewritten

NAME = "tvmconvgrad"


def _rewriting(name: str, kind: type, callback: Callable[[Any], Any]) -> Any:
    """A pass that rewrites all nodes of a type."""
    return _pass(name, lambda module: rewritten(module, (kind, callback)))


def _pass(name: str, change: Callable[[tvm.IRModule], tvm.IRModule]) -> Any:
    return tvm.transform.module_pass(lambda module, _: change(module), opt_level=0, name=name)


def _plan_memory() -> list[Any]:
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        _rewriting("SetConditions", tirx.AttrStmt, with_condition),
    ]


def _lower_loops() -> list[Any]:
    return [
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        _rewriting("StageResults", tirx.AttrStmt, staged),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.VectorizeLoop(),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        _rewriting("PeelLoops", tirx.AttrStmt, peeled),
        s_tir.transform.ConvertSSA(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
    ]


def _make_functions() -> list[Any]:
    return [
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.BF16StorageLegalize(),
    ]


def _vectorize() -> list[Any]:
    return [
        _rewriting("AlignArgumentsToElements", tirx.AttrStmt, aligned_to_elements),
        _rewriting("KeepTilesOnStack", tirx.AllocBuffer, kept_on_stack),
        _pass("InsertTranspositions", with_transpositions),
        _pass("InsertPairs", with_pairs),
        _pass("InsertTiles", with_tiles),
        _pass("InsertMaskedLoads", with_masked_loads),
        tirx.transform.VectorizeLoop(),
        _pass("MaskStridedStores", with_strided_masked_stores),
        _pass("StoreNonTemporally", with_non_temporal_stores),
        _pass("RoundToBf16", with_roundings),
        _rewriting("InsertPrefetches", tirx.AttrStmt, with_prefetches),
    ]


def _pipeline() -> tuple[Any, Any, Any]:
    _, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")
    passes = [*_plan_memory(), *_lower_loops(), *_make_functions(), *_vectorize()]
    return tvm.transform.Sequential(passes), finalize_host, finalize_device


tirx.register_tir_pipeline(NAME, _pipeline)
