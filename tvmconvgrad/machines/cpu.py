"""A small model of a CPU, from which schedules compute their numbers: tile sizes, cache blocks, costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import tvm
from tvm.target import codegen

from tvmconvgrad.machines import cpus, files
from tvmconvgrad.machines.targets import Target

F32_BYTES = 4
BF16_BYTES = 2
CACHE_LINE = 64
"""Bytes, on every CPU that has a machine file."""

PAGE_BYTES = 4096

L2_WAYS = 8
"""The least ways that L2 has on those CPUs: Intel's and AMD's have 8 to 20, Arm's 8."""


@dataclass(frozen=True)
class CpuMachine:
    """What a schedule needs to know of a CPU: its vectors, by the features that LLVM gives the target's CPU, and the
    numbers of its machine file (machines/files.py).

    The file is chosen by the target's names alone. If the machine at hand were asked, the code, and with it the bits of
    a result, would depend on where it was built.
    """

    lanes: int
    """The number of f32 in a vector register."""
    registers: int
    """The number of vector registers."""
    l1: int
    """Bytes of a core's L1 data cache."""
    l1_ways: int
    """Cache lines in a set of L1."""
    l2: int
    """Bytes of a core's L2."""
    l3: int
    """Bytes of the last-level cache that a core may count on."""
    l1_blocks: int
    """Bytes of L1 that what a tile reads again should take at most."""
    l2_blocks: int
    """Bytes of L2 that cache blocks, panels and partitions should take at most. The rest is for what passes through."""
    fma_units: int
    """Vector FMAs that a core starts in a cycle, if vectors are no longer than `fma_bits`."""
    fma_bits: int
    """Bits of a vector that an FMA unit takes in a cycle. A longer vector takes a cycle for each such part."""
    fma_latency: float
    """Cycles until the sum of an FMA can be added to."""
    dots_per_fma: float
    """bf16 dot-product instructions that a core starts in the time of one FMA, of vectors as long."""
    loads_per_cycle: float
    """Operands that a core loads from L1 in a cycle while it multiplies: scalars and vectors alike."""
    l2_bytes_per_cycle: float
    """Bytes that a core reads from L2 in a cycle."""
    memory_cycles_per_byte: float
    """Cycles that a core takes to read a byte from memory."""
    followed_pages: int
    """Pages in which a core's own prefetcher follows reads at a time, to L2."""
    prefetch_positions: int
    """How many positions ahead depthwise weights gradients prefetch what they read, rounded up to whole rows."""
    masked_stores: bool = False
    """Whether a masked store is as fast as a whole one (AVX-512). On other CPUs storing lane by lane is faster."""
    masks_16_bits: bool = False
    """Whether an instruction loads or stores some lanes of a vector of 16-bit elements (AVX512BW)."""
    broadcasts: bool = False
    """Whether an FMA can broadcast an operand from memory (AVX-512). On other CPUs that takes an instruction."""
    fused: bool = False
    """Whether an instruction multiplies and adds, so that a product takes no register of its own (FMA3, AVX-512,
    AArch64)."""
    by_element: bool = False
    """Whether an FMA can multiply by an element of a vector register (AArch64), which then needs no broadcast."""
    multiplies_pairs: bool = False
    """Whether an instruction adds the products of two bf16 pairs to an f32 (AVX512_BF16, BFDOT of AArch64)."""
    tile_registers: bool = False
    """Whether instructions multiply tiles of bf16 pairs in tile registers (AMX_BF16)."""
    non_temporal: bool = False
    """Whether results may be written by non-temporal stores (x86)."""

    @classmethod
    def of(cls, target: Target) -> CpuMachine:
        """The model of an `llvm` target: the file of `mtune`, or of `mcpu`, or the generic one for its vectors."""
        vectors = _vectors(tvm.target.Target(target.to_dict()))
        found = files.find(cpus.FOLDER, target.mtune or target.mcpu)
        return cls(**vectors, **(found or files.machine_files(cpus.FOLDER)[generic(vectors["lanes"])]).values)

    @property
    def fmas(self) -> float:
        """Vector FMAs that a core starts in a cycle."""
        return self.fma_units / self.vector_parts

    @property
    def vector_parts(self) -> float:
        """In how many parts an FMA unit takes a vector, and a core loads one."""
        return max(8 * F32_BYTES * self.lanes / self.fma_bits, 1.0)

    def products(self, pairs: bool) -> float:
        """Products that a core multiplies in a cycle, of f32 or of bf16 pairs."""
        return self.fmas * self.lanes * (2 * self.dots_per_fma if pairs else 1)

    def takes_pairs(self, in_tile_registers: bool = False) -> bool:
        """Whether bf16 operands stay pairs: in tile registers, or where the instruction for two products is faster than
        two FMAs. Otherwise bf16 is converted to f32 as it is packed or loaded: an Intel Xeon with AMX takes as long for
        one as for four FMAs, and docs/targets.md has what that gained."""
        return self.multiplies_pairs and (in_tile_registers or 2 * self.dots_per_fma > 1)

    def loads_masked(self, dtype: str) -> bool:
        """Whether an instruction loads some lanes of a vector of this type, and zeros for the others (AVX, AVX-512;
        for 16 bits AVX512BW). On other CPUs LLVM would test each lane."""
        return self.lanes >= 8 if dtype == "f32" else self.masks_16_bits

    @property
    def fmas_in_flight(self) -> float:
        """The number of independent FMAs that keep the units busy."""
        return self.fmas * self.fma_latency

    def rows_without_conflicts(self, stride: int) -> int:
        """How many rows, `stride` bytes apart, may be read side by side without conflict misses in L1.

        Such rows map to few of its sets. They may take half of these sets' lines, as if L1 had `l1_blocks` bytes.
        With half of all 12 lines of each set MobileNetV2's block2_project in NCX was read in place, and its forward
        took 1.4 times as long (an Intel Xeon with AMX).
        """
        all_sets = self.l1 // CACHE_LINE // self.l1_ways
        sets = _sets_of_rows(all_sets, stride)
        return max(1, sets * (self.l1_blocks // CACHE_LINE) // all_sets // 2)

    def rows_in_l2(self, stride: int) -> int:
        """How many rows, `stride` bytes apart, may pass through half of L2 without conflict misses. Rows whose distance
        is a large power of two map to few of its sets."""
        return max(1, _sets_of_rows(self.l2 // CACHE_LINE // L2_WAYS, stride) * L2_WAYS // 2)


def _sets_of_rows(sets: int, stride: int) -> int:
    """To how many of so many sets of a cache rows map that begin `stride` bytes apart."""
    return sets // gcd(sets, max(stride // CACHE_LINE, 1))


def generic(lanes: int) -> str:
    """The name of the machine file for CPUs that have none of their own, with vectors of `lanes` f32."""
    return f"generic-{8 * F32_BYTES * lanes}"


def has_masked_stores(target: tvm.target.Target) -> bool:
    """Whether a masked store is as fast as a whole one on an `llvm` target."""
    return bool(codegen.llvm_cpu_has_features("avx512f", target))


def masks_16_bits(target: tvm.target.Target) -> bool:
    """Whether an instruction loads or stores some lanes of a vector of 16-bit elements on an `llvm` target."""
    return bool(codegen.llvm_cpu_has_features("avx512bw", target))


def _vectors(target: tvm.target.Target) -> dict[str, Any]:
    """What vectors a target has, by the names of `CpuMachine`'s fields."""
    if has_masked_stores(target):
        # VL: half vectors need the instruction for 256 bits.
        pairs = all(codegen.llvm_cpu_has_features(name, target) for name in ("avx512bf16", "avx512vl"))
        return {
            "lanes": 16,
            "registers": 32,
            "masked_stores": True,
            "masks_16_bits": masks_16_bits(target),
            "broadcasts": True,
            "fused": True,
            "multiplies_pairs": pairs,
            "tile_registers": pairs and "+amx-bf16" in map(str, target.attrs.get("mattr", ())),
            "non_temporal": True,
        }
    if codegen.llvm_cpu_has_features("avx", target):
        fused = bool(codegen.llvm_cpu_has_features("fma", target))
        return {"lanes": 8, "registers": 16, "fused": fused, "non_temporal": True}
    neon, bf16, sse = (bool(codegen.llvm_cpu_has_features(name, target)) for name in ("neon", "bf16", "sse2"))
    if neon:
        return {"lanes": 4, "registers": 32, "fused": True, "by_element": True, "multiplies_pairs": bf16}
    return {"lanes": 4, "registers": 16, "non_temporal": sse}
