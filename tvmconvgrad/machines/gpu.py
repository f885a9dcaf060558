"""A small model of NVIDIA's GPUs, from which schedules take their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

LAUNCH = 2.4
"""Microseconds that a kernel takes to begin and to end."""


@dataclass(frozen=True)
class GpuMachine:
    """What a schedule needs to know of a GPU. Numbers are of one multiprocessor (SM), unless they say otherwise.

    They depend on the architecture's name alone, so that the code, and with it the bits of a result, does not depend on
    where it was built.
    """

    architecture: int
    """90 for sm_90."""
    has_warp_groups: bool
    """Whether groups of warps multiply what lies in shared memory, by `wgmma`: in sm_90a alone."""
    processors: int
    """SMs of the GPU."""
    cycles: float
    """Of an SM in a microsecond."""
    shared: int
    """Bytes of shared memory of all blocks together."""
    shared_and_l1: int
    """Bytes of the memory that shared memory and the L1 cache are made of."""
    tensor_products: float
    """Products a cycle on tensor cores by `mma`, of f16 or bf16 with f32 sums; of TF32 half as many."""
    shared_products: float
    """Products a cycle on tensor cores by `wgmma`."""
    f32_products: float
    """Products a cycle on the units for f32."""
    l2_bytes: float
    """Bytes a cycle from the L2 cache, of one SM while all read."""
    bytes: float
    """Bytes a microsecond from and to the memory of the GPU."""
    latency: float = 1.0
    """Microseconds until a copy from that memory has come."""

    @classmethod
    def of(cls, target: tvm.target.Target) -> GpuMachine:
        """The machine of a `cuda` target: the largest GPU of its generation."""
        arch = str(target.attrs["arch"])
        found = re.match(r"sm_(\d+)", arch)
        architecture = int(found[1]) if found else 80
        if architecture >= 90:  # H100 and H200; `mma` reaches about 2/3 of what `wgmma` does
            return cls(architecture, arch == "sm_90a", 132, 1700, 227 << 10, 256 << 10, 1300, 2200, 128, 56, 2.4e6)
        if architecture in (86, 89):  # GeForce: less shared memory, and tensor cores that add up f32 at half speed
            return cls(architecture, False, 84, 1700, 99 << 10, 128 << 10, 256, 0, 128, 28, 0.8e6)
        return cls(architecture, False, 108, 1400, 163 << 10, 192 << 10, 1024, 0, 64, 40, 1.5e6)  # A100

    @property
    def has_clusters(self) -> bool:
        """Whether blocks may reach each other's shared memory: on data centers' GPUs since sm_90."""
        return 90 <= self.architecture < 120

    @property
    def has_early_launches(self) -> bool:
        """Whether a kernel's blocks may be there before the kernel before has ended: since sm_90."""
        return self.architecture >= 90

    def processors_of(self, cluster: int) -> int:
        """SMs that clusters of so many blocks may have at a time: parts of the GPU have 16 or 18, some of them less."""
        return self.processors * (12 if cluster < 4 else 11 if cluster < 8 else 10) // 12

    @property
    def has_copies(self) -> bool:
        """Whether there are `cp.async`, and `mma` for bf16: since sm_80."""
        return self.architecture >= 80

    @property
    def f32_flops(self) -> float:
        """Floating-point operations a microsecond on the units for f32, of all SMs."""
        return 2 * self.f32_products * self.cycles * self.processors
