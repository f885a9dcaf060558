"""A small model of a CPU, from which schedules compute their numbers: tile sizes, cache blocks, costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import tvm
from tvm.target import codegen

F32_BYTES = 4
BF16_BYTES = 2
CACHE_LINE = 64


@dataclass(frozen=True)
class CpuMachine:
    """What a schedule needs to know of a CPU. `lanes` is the number of f32 in a vector register, `registers` the number
    of these registers; cache sizes are in bytes for one core, `l3` its share of the last-level cache.

    The cache sizes are the least that today's cores have. LLVM knows no cache sizes, and if the machine at hand were
    asked, the code, and with it the bits of a result, would depend on where it was built.
    """

    lanes: int
    registers: int
    masked_stores: bool = False
    """Whether a masked store is as fast as a whole one (AVX-512). On other CPUs storing lane by lane is faster."""
    broadcasts: bool = False
    """Whether an FMA can broadcast an operand from memory (AVX-512). On other CPUs that takes an instruction."""
    by_element: bool = False
    """Whether an FMA can multiply by an element of a vector register (AArch64), which then needs no broadcast."""
    multiplies_pairs: bool = False
    """Whether an instruction adds the products of two bf16 pairs to an f32 (AVX512_BF16, BFDOT of AArch64)."""
    tile_registers: bool = False
    """Whether instructions multiply tiles of bf16 pairs in tile registers (AMX_BF16)."""
    non_temporal: bool = False
    """Whether results may be written by non-temporal stores (x86)."""
    l1: int = 32 << 10
    l1_ways: int = 8
    l2: int = 512 << 10
    l3: int = 4 << 20

    @classmethod
    def of(cls, target: tvm.target.Target) -> CpuMachine:
        """The model of an `llvm` target, by the features that LLVM gives its CPU."""
        if codegen.llvm_cpu_has_features("avx512f", target):
            # VL: half vectors need the instruction for 256 bits.
            pairs = all(codegen.llvm_cpu_has_features(name, target) for name in ("avx512bf16", "avx512vl"))
            return cls(
                lanes=16,
                registers=32,
                masked_stores=True,
                broadcasts=True,
                multiplies_pairs=pairs,
                tile_registers=pairs and "+amx-bf16" in map(str, target.attrs.get("mattr", ())),
                non_temporal=True,
            )
        if codegen.llvm_cpu_has_features("avx", target):
            return cls(lanes=8, registers=16, non_temporal=True)
        if codegen.llvm_cpu_has_features("neon", target):
            pairs = bool(codegen.llvm_cpu_has_features("bf16", target))
            return cls(lanes=4, registers=32, by_element=True, multiplies_pairs=pairs)
        return cls(lanes=4, registers=16, non_temporal=bool(codegen.llvm_cpu_has_features("sse2", target)))

    @property
    def vectors(self) -> list[int]:
        """The widths of vectors that tiles may have, in f32: a register's, and half of it."""
        return sorted({self.lanes, max(self.lanes // 2, 4)})

    @property
    def widths(self) -> list[int]:
        """The numbers of channels that a tile may have along its vectors: one vector of either width, or several whole
        ones."""
        return [*self.vectors, *(self.lanes * count for count in (2, 3, 4, 6))]

    def holds(self, rows: int, columns: int, spare: int = 2) -> bool:
        """Whether rows x columns vectors of sums fit the registers beside one vector for each column, with `spare`
        registers left."""
        return rows * columns + columns + spare <= self.registers

    def tile_efficiency(
        self,
        rows: int,
        columns: int,
        lanes: int,
        costs: tuple[float, float] = (0.25, 0.25),
        enough: float = 12,
        spare: int = 2,
    ) -> float:
        """The share of peak FLOPs that a register tile of rows x columns vectors of sums may reach; 0 if it spills.

        A step of the innermost loop loads `columns` vectors and `rows` scalars for rows * columns FMAs. The sums and
        vectors stay in registers; of the `spare` ones, one holds a scalar. Two FMAs start in a cycle, and the result of
        one is ready after four cycles. So the units idle with fewer than `enough` sums: with half of them, for a
        quarter of the time. (Where loops are short several tiles are in flight, and callers pass a smaller `enough`.)
        `costs` says what loading a row's and a column's operand costs, in FMAs (schedules/cpu/costs.py). `lanes` are
        those in use.
        """
        fmas = rows * columns
        if not self.holds(rows, columns, spare):
            return 0.0
        loading = costs[0] * rows + costs[1] * columns
        idle = max(0.0, 1 - fmas / enough) ** 2
        return (1 - idle) * fmas / (fmas + loading) * lanes / self.lanes

    def rows_apart(self, stride: int) -> int:
        """How many rows, `stride` bytes apart, may be read side by side without displacing each other from L1: half of
        the lines in the sets that they map to."""
        all_sets = self.l1 // CACHE_LINE // self.l1_ways
        sets = all_sets // gcd(all_sets, max(stride // CACHE_LINE, 1))
        return max(1, sets * self.l1_ways // 2)
