"""A small model of the CPU, from which schedules take their numbers."""

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
    """What a schedule needs to know of a CPU. Sizes in bytes; `lanes` is the f32 elements of one vector register.

    Cache sizes are those that today's cores have at least: LLVM knows none, and asking the machine at hand would make
    the code, and with it the bits of a result, depend on where it was built.
    """

    lanes: int
    registers: int
    masked_stores: bool = False
    """Whether a vector is stored but for some lanes as fast as a whole one: else lane by lane is faster."""
    broadcasts: bool = False
    """Whether an FMA itself spreads an operand in memory over all lanes: else that takes an instruction."""
    multiplies_pairs: bool = False
    """Whether an instruction multiplies pairs of bf16 and adds both products to an f32."""
    non_temporal: bool = False
    """Whether stores may are written by non-temporal stores."""
    l1: int = 32 << 10
    l1_ways: int = 8
    l2: int = 512 << 10
    l3: int = 4 << 20

    @classmethod
    def of(cls, target: tvm.target.Target) -> CpuMachine:
        """The machine of an `llvm` target, from the features that LLVM gives its CPU."""
        if codegen.llvm_cpu_has_features("avx512f", target):
            # VL: the instruction on vectors of half the width.
            pairs = all(codegen.llvm_cpu_has_features(name, target) for name in ("avx512bf16", "avx512vl"))
            return cls(
                lanes=16, registers=32, masked_stores=True, broadcasts=True, multiplies_pairs=pairs, non_temporal=True
            )
        if codegen.llvm_cpu_has_features("avx", target):
            return cls(lanes=8, registers=16, non_temporal=True)
        neon, sse = (codegen.llvm_cpu_has_features(name, target) for name in ("neon", "sse2"))
        return cls(lanes=4, registers=32 if neon else 16, non_temporal=bool(sse))

    @property
    def vectors(self) -> list[int]:
        """The widths of vectors that are of use, in f32 elements: a register's, and half of it."""
        return sorted({self.lanes, max(self.lanes // 2, 4)})

    @property
    def widths(self) -> list[int]:
        """How many channels a tile may have along its vectors: one vector of any width, or several whole ones."""
        return [*self.vectors, *(self.lanes * count for count in (2, 3, 4, 6))]

    def holds(self, rows: int, columns: int, spare: int = 2) -> bool:
        """Whether rows x columns vector sums stay in registers beside the vectors, with so many registers to spare."""
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
        """The share of peak that a register tile of rows x columns vector sums may reach; 0 when it spills.

        A step of the innermost loop loads `columns` vectors and `rows` more operands for `rows * columns` FMAs. All
        sums and the vectors are kept in registers, with one operand of a row and one register to `spare`. Two FMAs
        start in a cycle, and an FMA's result is ready after four: with less than `enough` sums the units idle, with
        half of them a quarter of the time, unless the loop is so short that several tiles are under way. `costs` are
        what loading a row's and a column's operand costs, as parts of an FMA, since some miss the L1 cache.
        """
        fmas = rows * columns
        if not self.holds(rows, columns, spare):
            return 0.0
        loading = costs[0] * rows + costs[1] * columns
        idle = max(0.0, 1 - fmas / enough) ** 2
        return (1 - idle) * fmas / (fmas + loading) * lanes / self.lanes

    def rows_apart(self, stride: int) -> int:
        """How many rows, `stride` bytes apart, may be read side by side: half of the lines of L1 that they map to."""
        all_sets = self.l1 // CACHE_LINE // self.l1_ways
        sets = all_sets // gcd(all_sets, max(stride // CACHE_LINE, 1))
        return max(1, sets * self.l1_ways // 2)
