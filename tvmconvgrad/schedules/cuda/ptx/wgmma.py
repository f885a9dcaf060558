"""The instructions of Hopper's warpgroups, as device functions (instructions.py): `wgmma`, for sm_90a.

Tensor cores read what they multiply from shared memory by themselves, and go on while the warps do something else. The
PTX manual has them under "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" (PTX ISA 8.0).
"""

from __future__ import annotations

from typing import NamedTuple

from tvm import tirx

from tvmconvgrad.schedules.cuda.ptx.instructions import call
from tvmconvgrad.te.tensors import Index

FENCE_PROXY_ASYNC = """\
__device__ __forceinline__ void tvmconvgrad_fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;\\n" ::: "memory");
}
"""

BEGIN_PRODUCTS = """\
__device__ __forceinline__ void tvmconvgrad_begin_products() {
  asm volatile("wgmma.fence.sync.aligned;\\n" ::: "memory");
}
"""

COMMIT_PRODUCTS = """\
__device__ __forceinline__ void tvmconvgrad_commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\\n" ::: "memory");
}
"""

WAIT_PRODUCTS = """\
__device__ __forceinline__ void tvmconvgrad_wait_products_{pending}() {{
  asm volatile("wgmma.wait_group.sync.aligned {pending};\\n" ::: "memory");
}}
"""

MULTIPLY_SHARED = """\
__device__ __forceinline__ void {name}(
    void* to, const void* a, int a_parts, int a_lines, int a_mode,
    const void* b, int b_parts, int b_lines, int b_mode) {{
  float* sums = static_cast<float*>(to);
  auto matrix = [](const void* first, unsigned long long parts, unsigned long long lines, unsigned long long mode) {{
    return (__cvta_generic_to_shared(first) & 0x3ffff) >> 4 | parts >> 4 << 16 | lines >> 4 << 32 | mode << 62;
  }};
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, 1, 0; "
    "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype} "
    "{{{sums}}}, %{a}, %{b}, p, 1, 1, {across}; }}\\n"
    : {outputs}
    : "l"(matrix(a, a_parts, a_lines, a_mode)), "l"(matrix(b, b_parts, b_lines, b_mode)) : "memory");
}}
"""


class Matrix(NamedTuple):
    """What `wgmma` is told of a matrix in shared memory, which SwizzledTile explains."""

    first: Index
    """The address of its first vector."""
    parts: int
    """Bytes from one part along lines to the next."""
    lines: int
    """Bytes from eight lines to the next eight."""
    mode: int
    """Of swizzling."""
    across: bool
    """Whether lines are along positions, across summed elements."""


def fence_proxy_async() -> tirx.Stmt:
    """Let tensor cores that read shared memory by themselves see what this thread's copies have brought."""
    return call("tvmconvgrad_fence_proxy_async", FENCE_PROXY_ASYNC)


def begin_products() -> tirx.Stmt:
    """Before the first `multiply_shared` after something else has written the sums."""
    return call("tvmconvgrad_begin_products", BEGIN_PRODUCTS)


def commit_products() -> tirx.Stmt:
    """Close a group of products: those begun since the last one."""
    return call("tvmconvgrad_commit_products", COMMIT_PRODUCTS)


def wait_products(pending: int) -> tirx.Stmt:
    """Wait until at most so many groups of products are under way."""
    return call(f"tvmconvgrad_wait_products_{pending}", WAIT_PRODUCTS.format(pending=pending))


def multiply_shared(dtype: str, columns: int, sums: Index, a: Matrix, b: Matrix) -> tirx.Stmt:
    """Begin to add the product of 64 x 16 elements and 16 x `columns`, both in shared memory, to a warpgroup's f32
    sums ("f16" and "bf16", sm_90a)."""
    across, count = (int(a.across), int(b.across)), columns // 2
    name = f"tvmconvgrad_multiply_shared_{dtype}_{columns}_{across[0]}{across[1]}"
    source = MULTIPLY_SHARED.format(
        name=name,
        dtype=dtype,
        columns=columns,
        across=f"{across[0]}, {across[1]}",
        sums=", ".join(f"%{i}" for i in range(count)),
        outputs=", ".join(f'"+f"(sums[{i}])' for i in range(count)),
        a=count,
        b=count + 1,
    )
    numbers = ((each.first, *(tirx.IntImm("int32", n) for n in (each.parts, each.lines, each.mode))) for each in (a, b))
    return call(name, source, sums, *(number for each in numbers for number in each))
