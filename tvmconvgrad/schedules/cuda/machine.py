"""A small model of NVIDIA's GPUs, from which schedules take their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tvm


@dataclass(frozen=True)
class Machine:
    """What a schedule needs to know of a GPU. Numbers are of one multiprocessor (SM), unless they say otherwise.

    They depend on the architecture's name alone, so that the code, and with it the bits of a result, does not depend on
    where it was built.
    """

    architecture: int
    """90 for sm_90."""
    processors: int
    """SMs of the GPU."""
    shared: int
    """Bytes of shared memory of all blocks together."""
    tensor_flops: float
    """Floating-point operations a microsecond on tensor cores by `mma`, f16 or bf16 with f32 sums, of all SMs."""
    f32_flops: float
    """The same on the units for f32."""
    bytes: float
    """Bytes a microsecond from and to the GPU's memory."""

    @classmethod
    def of(cls, target: tvm.target.Target) -> Machine:
        """The machine of a `cuda` target: the largest GPU of its generation."""
        found = re.match(r"sm_(\d+)", str(target.attrs["arch"]))
        architecture = int(found[1]) if found else 80
        if architecture >= 90:  # H100 and H200; `mma` reaches about 2/3 of what `wgmma` does
            return cls(architecture, 132, 227 << 10, 620e6, 60e6, 3.3e6)
        if architecture in (86, 89):  # GeForce: fewer bytes of shared memory and slower f32 sums of tensor cores
            return cls(architecture, 84, 99 << 10, 75e6, 30e6, 0.8e6)
        return cls(architecture, 108, 163 << 10, 280e6, 18e6, 1.5e6)  # A100

    @property
    def has_copies(self) -> bool:
        """Whether there are `cp.async`, and `mma` for bf16: since sm_80."""
        return self.architecture >= 80

    @property
    def block_shared(self) -> int:
        """Bytes of shared memory that one block may have; it takes 1 KiB more than it asks for."""
        return self.shared
