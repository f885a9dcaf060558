"""The instructions of TMA, as device functions (instructions.py): `cp.async.bulk.tensor`, and the barriers
in shared memory that tell when its tiles have come. Since sm_90.

The PTX manual has them under "Data Movement and Conversion Instructions: Tensor copy" and "mbarrier" (PTX ISA 8.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.ptx.instructions import call
from tvmconvgrad.schedules.cuda.writing import Mapped
from tvmconvgrad.te.tensors import Index

SHARED = "static_cast<unsigned>(__cvta_generic_to_shared({}))"

MAKE_BARRIER = f"""\
__device__ __forceinline__ void tvmconvgrad_make_barrier(void* barrier, int arrivals) {{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\\n" ::
    "r"({SHARED.format("barrier")}), "r"(arrivals) : "memory");
}}
"""

FENCE_BARRIER_INIT = """\
__device__ __forceinline__ void tvmconvgrad_fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\\n" ::: "memory");
}
"""

EXPECT = f"""\
__device__ __forceinline__ void tvmconvgrad_expect(void* barrier, int bytes) {{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\\n" ::
    "r"({SHARED.format("barrier")}), "r"(bytes) : "memory");
}}
"""

ARRIVE = f"""\
__device__ __forceinline__ void tvmconvgrad_arrive(void* barrier) {{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\\n" :: "r"({SHARED.format("barrier")}) : "memory");
}}
"""

ARRIVE_AT = f"""\
__device__ __forceinline__ void tvmconvgrad_arrive_at(void* barrier, int block) {{
  asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
    "mbarrier.arrive.shared::cluster.b64 _, [there]; }}\\n" ::
    "r"({SHARED.format("barrier")}), "r"(block) : "memory");
}}
"""

WAIT_PHASE = f"""\
__device__ __forceinline__ void tvmconvgrad_wait_phase(void* barrier, int parity) {{
  for (unsigned ended = 0; !ended;)
    asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }}\\n"
      : "=r"(ended) : "r"({SHARED.format("barrier")}), "r"(parity) : "memory");
}}
"""

COPY_TILE = """\
__device__ __forceinline__ void {name}(
    void* to, const void* map, const void*, void* barrier, {parameters}) {{
  asm volatile("{instruction} [%0], [%1, {place}], [%2]{rest};\\n" ::
    "r"({to}), "l"(map), "r"({barrier}), {numbers} : "memory");
}}
"""


def make_barrier(barrier: Index, arrivals: int) -> tirx.Stmt:
    """Make a barrier in shared memory, each phase of which waits for so many arrivals, and for the bytes that they
    announce."""
    return call("tvmconvgrad_make_barrier", MAKE_BARRIER, barrier, tirx.IntImm("int32", arrivals))


def fence_barrier_init() -> tirx.Stmt:
    """Let TMA, and other blocks of the cluster, see the barriers that this thread has made."""
    return call("tvmconvgrad_fence_barrier_init", FENCE_BARRIER_INIT)


def expect(barrier: Index, count: int) -> tirx.Stmt:
    """Arrive at a barrier, and announce so many bytes to it."""
    return call("tvmconvgrad_expect", EXPECT, barrier, tirx.IntImm("int32", count))


def arrive(barrier: Index, blocks: Sequence[Index]) -> tirx.Stmt:
    """Arrive at a barrier: in some blocks of the cluster, or, if none are named, in this one."""
    if not blocks:
        return call("tvmconvgrad_arrive", ARRIVE, barrier)
    return writing.seq(*(call("tvmconvgrad_arrive_at", ARRIVE_AT, barrier, each.astype("int32")) for each in blocks))


def wait_phase(barrier: Index, number: Index) -> tirx.Stmt:
    """Wait for phase `number` of a barrier (from 0). The caller must have seen the phase before."""
    return call("tvmconvgrad_wait_phase", WAIT_PHASE, barrier, tirx.floormod(number, 2).astype("int32"))


def copy_tile(
    to: Index,
    tensor_map: Mapped,
    barrier: Index,
    place: Sequence[Index],
    offsets: Sequence[Index],
    to_blocks: Index | None,
) -> tirx.Stmt:
    """Begin to copy a tile of a tensor to shared memory, which the barrier is told of.

    It begins at `place`, innermost axis first; a tile of pixels (im2col mode), which has `offsets`, is taken from
    elements so far behind its pixels. It goes to the same place of each block of the cluster that `to_blocks` has a
    bit of; None: to this block alone.
    """
    rank, ends = len(place), len(place) + len(offsets)
    operands = [f"%{3 + i}" for i in range(ends + (to_blocks is not None))]
    rest = ["{" + ", ".join(operands[rank:ends]) + "}"] if offsets else []
    kind, cast = ".im2col" if offsets else "", ".multicast::cluster" if to_blocks is not None else ""
    name = f"tvmconvgrad_copy_{'pixels' if offsets else 'tile'}_{rank}{'' if to_blocks is None else '_shared'}"
    names = [f"n{i}" for i in range(len(operands))]
    source = COPY_TILE.format(
        name=name,
        parameters=", ".join(f"int {each}" for each in names),
        instruction=f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{kind}.mbarrier::complete_tx::bytes{cast}",
        place="{" + ", ".join(operands[:rank]) + "}",
        rest="".join(f", {each}" for each in (*rest, *operands[ends:])),
        to=SHARED.format("to"),
        barrier=SHARED.format("barrier"),
        numbers=", ".join(
            f'"r"({each})' if i < rank else f'"h"(static_cast<short>({each}))' for i, each in enumerate(names)
        ),
    )
    values = [value.astype("int32") for value in (*place, *offsets)]
    values += [] if to_blocks is None else [to_blocks.astype("int32")]
    return call(name, source, to, tensor_map.address, tensor_map.begin, barrier, *values)
