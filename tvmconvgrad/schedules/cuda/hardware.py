"""What all of NVIDIA's GPUs that the schedules take have in common (sm_80 and later). machines/ has what differs.

CUDA's programming guide has these numbers, if a docstring names no other source.
"""

from __future__ import annotations

WARP = 32
"""Threads of a warp."""
WARPGROUP = 4 * WARP
"""Threads of a warpgroup, which starts `wgmma` (PTX manual, "Asynchronous Warpgroup Level Matrix Instructions")."""
QUARTERS = 4
"""Partitions of an SM, which have their own units, schedulers and warps."""
REGISTERS = 1 << 16
"""Registers of an SM."""
WORD = 4
"""Bytes of a register, and of a bank of shared memory."""
VECTOR_BYTES = 16
"""The most bytes that a thread loads, stores or copies by one instruction."""
LINE_BYTES = 128
"""Bytes of a cache line of L1."""
SHARED_BYTES = 128
"""Bytes that an SM reads from shared memory, or writes to it, in a cycle: a word of each of 32 banks."""
RESERVED_BYTES = 1 << 10
"""Shared memory that CUDA reserves for each block."""
