"""The instructions of NVIDIA's GPUs that have no word in TVM's programs, as device functions of a line of PTX each.

Pointers to shared memory are generic ones here and become addresses of shared memory in the functions. The PTX manual
("Instruction Set", PTX ISA 7.0 and later, sm_80 and later) says what each does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import StringImm

from tvmconvgrad.schedules.cuda.writing import every
from tvmconvgrad.te.tensors import Index

COPY = """\
__device__ __forceinline__ void {name}(void* to, const void* from, int inside) {{
  asm volatile("cp.async.{way}.shared.global [%0], [%1], 16, %2;\\n" ::
    "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
    "r"(inside ? 16 : 0) : "memory");
}}
"""

COPY_IF = """\
__device__ __forceinline__ void {name}_if(void* to, const void* from, int inside, int wanted) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.{way}.shared.global [%0], [%1], 16, %2; }}\\n" ::
    "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
    "r"(inside ? 16 : 0), "r"(wanted) : "memory");
}}
"""

LOAD_VECTOR = """\
__device__ __forceinline__ void tvmconvgrad_load_vector(void* words, const void* from, int inside) {
  unsigned* to = static_cast<unsigned*>(words);
  to[0] = to[2] = to[4] = to[6] = 0;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }\\n"
    : "+r"(to[0]), "+r"(to[2]), "+r"(to[4]), "+r"(to[6]) : "l"(from), "r"(inside) : "memory");
}
"""

COMMIT = """\
__device__ __forceinline__ void tvmconvgrad_commit() { asm volatile("cp.async.commit_group;\\n" ::: "memory"); }
"""

WAIT = """\
__device__ __forceinline__ void tvmconvgrad_wait_{pending}() {{
  asm volatile("cp.async.wait_group {pending};\\n" ::: "memory");
}}
"""

LOAD_MATRICES = """\
__device__ __forceinline__ void tvmconvgrad_load_matrices{name}(void* words, const void* row) {{
  unsigned* to = static_cast<unsigned*>(words);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{option}.shared.b16 {{%0, %1, %2, %3}}, [%4];\\n"
    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
    : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}}
"""

ROUND = """\
__device__ __forceinline__ void tvmconvgrad_round_tf32(void* words) {
  unsigned* to = static_cast<unsigned*>(words);
  const float* from = static_cast<const float*>(words);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cvt.rn.tf32.f32 %0, %1;\\n" : "=r"(to[i]) : "f"(from[i]));
#else
    asm volatile("cvt.rna.tf32.f32 %0, %1;\\n" : "=r"(to[i]) : "f"(from[i]));
#endif
}
"""

MULTIPLY = """\
__device__ __forceinline__ void tvmconvgrad_multiply_{dtype}(void* to, const void* a_words, const void* b_words) {{
  float* sums = static_cast<float*>(to);
  const unsigned *a = static_cast<const unsigned*>(a_words), *b = static_cast<const unsigned*>(b_words);
  asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{dtype}.{dtype}.f32 "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};\\n"
    : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""


def copy(to: Index, source: Index, inside: Index, wanted: Sequence[Index], cached: bool) -> tirx.Stmt:
    """Begin to copy 16 bytes from global to shared memory; zeros where not `inside`, and nothing is then read.

    They stay in the L1 cache if they are to be `cached`, else they pass it by. Unless all of `wanted` hold nothing is
    done, without a branch.
    """
    way = "ca" if cached else "cg"
    name = f"tvmconvgrad_copy_{way}"
    if not wanted:
        return call(name, COPY.format(name=name, way=way), to, source, inside)
    return call(f"{name}_if", COPY_IF.format(name=name, way=way), to, source, inside, every(*wanted))


def load_vector(to: Index, source: Index, inside: Index) -> tirx.Stmt:
    """Read 16 bytes from global memory that nothing writes, to every other register of seven; zeros where not `inside`,
    and nothing is then read."""
    return call("tvmconvgrad_load_vector", LOAD_VECTOR, to, source, inside)


def commit() -> tirx.Stmt:
    """Close a group of copies: those begun since the last one."""
    return call("tvmconvgrad_commit", COMMIT)


def wait(pending: int) -> tirx.Stmt:
    """Wait until at most so many groups of this thread are under way."""
    return call(f"tvmconvgrad_wait_{pending}", WAIT.format(pending=pending))


def barrier() -> tirx.Stmt:
    """Wait for all threads of the block."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", StringImm("shared")))


def load_matrices(to: Index, row: Index, transposed: bool) -> tirx.Stmt:
    """Load four 8x8 matrices of 16-bit elements to the warp's fragments; lanes 8i to 8i+7 give the rows of matrix i."""
    name, option = ("_transposed", ".trans") if transposed else ("", "")
    source = LOAD_MATRICES.format(name=name, option=option)
    return call(f"tvmconvgrad_load_matrices{name}", source, to, row)


def round_to_tf32(words: Index) -> tirx.Stmt:
    """Round four f32 to the nearest TF32: `mma` takes no notice of the bits that TF32 lacks. Since sm_90 an instruction
    does so, and of ties takes the even one; before, ties go away from zero."""
    return call("tvmconvgrad_round_tf32", ROUND, words)


def multiply(dtype: str, k: int, sums: Index, a: Index, b: Index) -> tirx.Stmt:
    """Add the product of a 16 x `k` and a `k` x 8 fragment to a fragment of f32 sums; "f16" and "bf16" have
    16 elements of K, "tf32" 8."""
    return call(f"tvmconvgrad_multiply_{dtype}", MULTIPLY.format(dtype=dtype, k=k), sums, a, b)


def call(name: str, source: str, *arguments: Index) -> tirx.Stmt:
    """Call a device function of this source."""
    value = tirx.call_intrin("void", "tirx.cuda.func_call", StringImm(name), *arguments, StringImm(source))
    return tirx.Evaluate(value)
