"""How a scheduled program is lowered for LLVM: those of TVM's passes that it needs, in TVM's order, with five changes.

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

TVM's own list (tvm/s_tir/pipeline.py) has 24 passes more, for GPUs, for what no schedule here annotates, and for common
subexpressions: LLVM finds them anyway, and without that pass 718 kernels were as fast and there 5 ms sooner (an AMD
EPYC with Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import DataType, s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.schedules.transforms.prefetch import prefetch
from tvmconvgrad.tir.annotations import CONDITION, PREFETCH, PREFETCH_FAR
from tvmconvgrad.tir.passes.masking import with_masked_loads
from tvmconvgrad.tir.passes.non_temporal import with_non_temporal_stores
from tvmconvgrad.tir.passes.pairs import with_pairs
from tvmconvgrad.tir.passes.staging import staged
from tvmconvgrad.tir.passes.strided_stores import with_strided_masked_stores
from tvmconvgrad.tir.passes.tiles import with_tiles
from tvmconvgrad.tir.passes.transposition import transposed
from tvmconvgrad.tir.rewriting import nodes, rewritten

NAME = "tvmconvgrad"
LARGEST_TILE_BYTES = 4096
_CACHES = {PREFETCH: 1, PREFETCH_FAR: 2}
_ALLOCATES = "tirx.LowerTVMBuiltin"
_ALLOCATE = tvm.ir.Op.get("tirx.TVMBackendAllocWorkspace")


def _align_to_elements(statement: tirx.AttrStmt) -> tirx.AttrStmt:
    if statement.attr_key != "storage_alignment":
        return statement
    return tirx.AttrStmt(statement.node, statement.attr_key, tirx.IntImm("int32", 1), statement.body)


@tvm.instrument.pass_instrument
class WorkspaceMeter:
    """Records what a program allocates beyond the stack; a kernel holds all of it at the same time.

    `sizes` has the bytes of each allocation, `work_item_sizes` those of allocations that each work item of a parallel
    loop has for itself.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.work_item_sizes: list[int] = []

    @property
    def bytes(self) -> int:
        """What a call on one thread needs."""
        return sum(self.sizes)

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM."""
        if info.name == _ALLOCATES:
            self.sizes += _allocated(module)
            loops = [loop for loop in nodes(module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
            self.work_item_sizes += [size for loop in loops for size in _allocated(loop.body)]


def _allocated(program: tvm.IRModule | tirx.Stmt) -> list[int]:
    return [int(call.args[2]) for call in nodes(program, tvm.ir.Call) if call.op.same_as(_ALLOCATE)]


def _keep_on_stack(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
    element = DataType(str(statement.buffer.dtype))
    size = prod(int(extent) for extent in statement.buffer.shape) * element.lanes * element.bits // 8
    if size > LARGEST_TILE_BYTES:
        return statement
    return tirx.AllocBuffer(statement.buffer, {"disable_lower_builtin": tirx.IntImm("int32", 1)})


def _with_prefetches(marked: tirx.AttrStmt) -> tirx.Stmt:
    if marked.attr_key not in _CACHES:
        return marked
    distance, cache = int(marked.value), _CACHES[marked.attr_key]
    fetched: list[tvm.ir.TensorLoad] = []

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        loads = nodes(statement.value, tvm.ir.TensorLoad)
        vectors = [load for load in loads if isinstance(load.indices[-1], tirx.Ramp) and not _share_line(load, fetched)]
        fetched.extend(vectors)
        fetches = [_line_ahead(load, distance + line, cache) for load in vectors for line in _lines(load)]
        return tirx.SeqStmt([statement, *fetches]) if fetches else statement

    return structural_map(marked.body, (tirx.BufferStore, store))


def _line(load: tvm.ir.TensorLoad) -> int:
    """The elements of a cache line."""
    return int(CACHE_LINE * 8 // DataType(str(load.source.dtype)).bits)


def _lines(load: tvm.ir.TensorLoad) -> range:
    """The offsets of a vector's cache lines, in elements."""
    return range(0, int(load.indices[-1].lanes), _line(load))


def _share_line(load: tvm.ir.TensorLoad, fetched: list[tvm.ir.TensorLoad]) -> bool:
    """Whether a vector lies within a cache line's length of the begin of one that is fetched."""
    for other in fetched:
        if other.source.same_as(load.source):
            distance = Analyzer().simplify(load.indices[-1].base - other.indices[-1].base)
            if isinstance(distance, tirx.IntImm) and 0 <= int(distance) < _line(load):
                return True
    return False


def _line_ahead(load: tvm.ir.TensorLoad, distance: int, cache: int) -> tirx.Stmt:
    """Fetch the line `distance` elements after a vector's first one."""
    *outer, vector = load.indices
    return prefetch(load.source, [*outer, vector.base + distance], cache=cache)


def _with_condition(marked: tirx.AttrStmt) -> tirx.Stmt:
    return tirx.IfThenElse(marked.value, marked.body, None) if marked.attr_key == CONDITION else marked


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
        _rewriting("SetConditions", tirx.AttrStmt, _with_condition),
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
        _rewriting("AlignArgumentsToElements", tirx.AttrStmt, _align_to_elements),
        _rewriting("KeepTilesOnStack", tirx.AllocBuffer, _keep_on_stack),
        _rewriting("InsertTranspositions", tirx.AttrStmt, transposed),
        _pass("InsertPairs", with_pairs),
        _pass("InsertTiles", with_tiles),
        _pass("InsertMaskedLoads", with_masked_loads),
        tirx.transform.VectorizeLoop(),
        _pass("MaskStridedStores", with_strided_masked_stores),
        _pass("StoreNonTemporally", with_non_temporal_stores),
        _rewriting("InsertPrefetches", tirx.AttrStmt, _with_prefetches),
    ]


def _pipeline() -> tuple[Any, Any, Any]:
    _, finalize_host, finalize_device = tirx.get_tir_pipeline("s_tir")
    passes = [*_plan_memory(), *_lower_loops(), *_make_functions(), *_vectorize()]
    return tvm.transform.Sequential(passes), finalize_host, finalize_device


tirx.register_tir_pipeline(NAME, _pipeline)
