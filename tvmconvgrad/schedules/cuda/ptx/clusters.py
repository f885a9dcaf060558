"""The instructions of blocks in a cluster, as device functions (instructions.py): since sm_90.

The blocks of a cluster run at the same time, and reach each other's shared memory. The PTX manual has them under
"barrier.cluster", "mapa", and "State Spaces: shared::cluster" (PTX ISA 7.8).
"""

from __future__ import annotations

from tvm import tirx

from tvmconvgrad.schedules.cuda.ptx.instructions import call
from tvmconvgrad.te.tensors import Index

SYNC = """\
__device__ __forceinline__ void tvmconvgrad_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;\\n" ::: "memory");
}
"""

LOAD_SHARED = """\
__device__ __forceinline__ void tvmconvgrad_load_shared_{width}(void* words, const void* from, int block) {{
  float* to = static_cast<float*>(words);
  asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %{width}, %{last}; "
    "ld.shared::cluster{vector}.f32 {operands}, [there]; }}\\n"
    : {outputs} : "r"(static_cast<unsigned>(__cvta_generic_to_shared(from))), "r"(block) : "memory");
}}
"""


def sync() -> tirx.Stmt:
    """Wait for all threads of the cluster. What they have written to shared memory before, all see from then on."""
    return call("tvmconvgrad_cluster_sync", SYNC)


def load_shared(to: Index, source: Index, block: Index, width: int) -> tirx.Stmt:
    """Load f32 (1, or 4 that are aligned to 16 bytes) from where `source` is, in another block of the cluster."""
    operands = ", ".join(f"%{i}" for i in range(width))
    source_text = LOAD_SHARED.format(
        width=width,
        last=width + 1,
        vector=".v4" if width == 4 else "",
        operands=f"{{{operands}}}" if width == 4 else operands,
        outputs=", ".join(f'"=f"(to[{i}])' for i in range(width)),
    )
    return call(f"tvmconvgrad_load_shared_{width}", source_text, to, source, block.astype("int32"))
