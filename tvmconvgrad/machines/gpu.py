"""A small model of NVIDIA's GPUs, from which schedules compute their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm

from tvmconvgrad.machines import files, gpus

LAUNCH = 2.4
"""Microseconds to launch and end a kernel. Chosen, not measured."""


@dataclass(frozen=True)
class GpuMachine:
    """What a schedule needs to know of a GPU. Numbers are for one multiprocessor (SM), unless they say otherwise.

    They are those of a machine file (machines/files.py), which is chosen by the architecture's name alone. So the code,
    and with it the bits of a result, does not depend on where it was built.
    """

    architecture: int
    """90 for sm_90."""
    has_warpgroups: bool
    """Whether warpgroups multiply operands in shared memory, by `wgmma`: only on sm_90a."""
    sms: int
    """Streaming multiprocessors of the GPU."""
    clock_mhz: float
    """The clock in MHz: cycles in a microsecond."""
    shared: int
    """Bytes of shared memory, for all blocks on an SM together."""
    shared_and_l1: int
    """Bytes of the memory that shared memory and the L1 cache share."""
    tensor_products: float
    """Multiply-adds a cycle on tensor cores by `mma`, of f16 or bf16 with f32 sums; of TF32, half of this number."""
    shared_products: float
    """The same by `wgmma`, which reads operands from shared memory."""
    f32_products: float
    """Multiply-adds a cycle on the FMA units for f32."""
    l2_bytes_per_cycle: float
    """Bytes a cycle from the L2 cache to one SM, while all SMs read."""
    bytes_per_us: float
    """Bytes a microsecond from and to global memory, for the whole GPU."""
    latency_us: float
    """Microseconds until a copy from global memory has arrived."""

    @classmethod
    def of(cls, target: tvm.target.Target) -> GpuMachine:
        """The model of a `cuda` target: the file of its architecture, or H100's from sm_90 on, or else A100's."""
        arch = str(target.attrs["arch"])
        found = re.match(r"sm_(\d+)", arch)
        architecture = int(found[1]) if found else 80
        other = "h100" if architecture >= 90 else "a100"
        file = files.find(gpus.FOLDER, arch) or files.machine_files(gpus.FOLDER)[other]
        return cls(architecture, arch == "sm_90a", **file.values)

    @property
    def has_clusters(self) -> bool:
        """Whether there are thread block clusters with distributed shared memory: on data centre GPUs since sm_90."""
        return 90 <= self.architecture < 120

    @property
    def has_dependent_launch(self) -> bool:
        """Whether there is programmatic dependent launch, which starts a kernel's blocks before the kernel before it
        has ended: since sm_90."""
        return self.architecture >= 90

    def sms_of(self, cluster: int) -> int:
        """SMs that clusters of `cluster` blocks can use at a time. A cluster lies within a part of the GPU (GPC) of 16
        or 18 SMs, so larger clusters leave more SMs unused."""
        return self.sms * (12 if cluster < 4 else 11 if cluster < 8 else 10) // 12

    @property
    def has_copies(self) -> bool:
        """Whether there are `cp.async`, and `mma` for bf16: since sm_80."""
        return self.architecture >= 80

    @property
    def f32_flops(self) -> float:
        """Floating-point operations a microsecond on the f32 FMA units of all SMs."""
        return 2 * self.f32_products * self.clock_mhz * self.sms
