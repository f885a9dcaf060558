"""The tiles of schedules/cuda/gemm/rule.py, and how fast an SM computes them.

Constants that are not the hardware's are part of the model that was fitted as cost.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import ColumnTile, PaddedTile, RegisterTile, SharedTile
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import SwizzledTile
from tvmconvgrad.schedules.cuda.hardware import (
    QUARTERS,
    REGISTERS,
    RESERVED_BYTES,
    SHARED_BYTES,
    VECTOR_BYTES,
    WARP,
    WARPGROUP,
    WORD,
)
from tvmconvgrad.te.tensors import ceil_to

ENOUGH_WARPS = 8
"""The warps that an SM needs so that some multiply while others wait."""
L2_BYTES = 64
"""Bytes that one SM loads from L2 in a cycle if the others don't (see also `GpuMachine.l2_bytes_per_cycle`)."""
ACCUMULATOR_BYTES = 4
"""Bytes of a sum, which is f32."""
RESULT_PAD = 8
"""Padding, in elements, between rows of sums in shared memory, so that lanes of a fragment write to different banks."""
BARRIER_BYTES = 8
"""Bytes of a barrier; a stage that TMA fills has two, full and empty."""
WGMMA_ROWS = 64
"""Rows of a `wgmma` instruction."""
LOADING = 2.0
"""What loading operands costs a thread that has one row, as a multiple of its FMAs."""
A_VECTOR_CYCLES = 24 / 4
"""Cycles of an SM for a warp that reads vectors of A directly: 24 instructions for addresses, bounds, zeros and
products, on four schedulers."""
MOST_COPIED = 8
"""In f32, a thread copies at most so many vectors of A in a stage, since it keeps their addresses in registers."""
OVERHEAD = 1.15
"""The factor of units other than `wgmma` for what warps do besides multiplying: copies, addresses, barriers."""
FRAGMENT_WORDS = 16
"""Registers of a warp for each row of A or column of B: an `mma` takes 32 bytes of each, double-buffered."""
MMA_REGISTERS = 32
"""Chosen, not measured: registers of a thread besides its sums and operands, by `wgmma` or `mma`: addresses, loops."""
A_REGISTERS = 70
"""Chosen, not measured: the same, if A goes straight to registers. They include the vectors of B."""
FMA_REGISTERS = 24
"""Chosen, not measured: the same on FMA units."""
FMA_OPERAND_REGISTERS = 5
"""Chosen, not measured: registers of a thread on FMA units for each of its rows and columns. Its arrays have
eight for each: double-buffered float4."""


@dataclass(frozen=True)
class GemmTile:
    """The tile of a block, BLOCK_M x BLOCK_N, and its workers along M and N: warps, warpgroups, or, for f32,
    threads."""

    block_m: int
    block_n: int
    workers: tuple[int, int]
    a_from_registers: bool = False
    """Whether warps read A from global memory to registers, past shared memory
    (units/tensor_cores_from_registers.py)."""


TENSOR_TILES = (
    GemmTile(256, 128, (4, 2)),
    GemmTile(128, 256, (2, 4)),
    GemmTile(128, 128, (2, 2)),
    GemmTile(256, 64, (4, 1)),
    GemmTile(64, 256, (1, 4)),
    GemmTile(128, 64, (2, 2)),
    GemmTile(64, 128, (2, 2)),
    GemmTile(64, 64, (2, 2)),
    GemmTile(128, 32, (4, 1)),
    GemmTile(32, 128, (1, 4)),
    GemmTile(64, 32, (2, 1)),
    GemmTile(32, 32, (2, 1)),
    GemmTile(128, 16, (4, 1)),
)
"""Tiles for `mma`. A warp has up to 64 x 64 sums, so it reads little from shared memory for each product."""

WARPGROUP_TILES = (
    GemmTile(128, 256, (2, 1)),
    GemmTile(256, 128, (2, 1)),
    GemmTile(128, 128, (2, 1)),
    GemmTile(256, 64, (2, 1)),
    GemmTile(64, 256, (1, 1)),
    GemmTile(128, 64, (2, 1)),
    GemmTile(64, 128, (1, 1)),
    GemmTile(64, 64, (1, 1)),
    GemmTile(128, 32, (2, 1)),
    GemmTile(64, 32, (1, 1)),
    GemmTile(128, 16, (2, 1)),
)
"""Tiles for `wgmma`. A warpgroup has all columns, so it reads B once for all of its 64 or 128 rows."""

TILES_FROM_REGISTERS = (
    GemmTile(256, 8, (4, 1), True),
    GemmTile(256, 16, (4, 1), True),
    GemmTile(128, 16, (4, 1), True),
    GemmTile(128, 32, (4, 1), True),
)
"""Tiles that read A directly: for 16 bits, with all of N, which is small, and vectors along K."""

FMA_TILES = (
    GemmTile(128, 128, (16, 16)),
    GemmTile(128, 64, (16, 8)),
    GemmTile(64, 128, (8, 16)),
    GemmTile(64, 64, (8, 8)),
    GemmTile(64, 64, (16, 16)),
    GemmTile(128, 32, (16, 8)),
    GemmTile(32, 128, (8, 16)),
    GemmTile(32, 32, (8, 8)),
    GemmTile(128, 16, (32, 4)),
    GemmTile(256, 4, (64, 1)),
)
"""Tiles for FMA units. A thread has up to 8 x 8 sums. The last tile is for the data gradients of first layers."""


@dataclass(frozen=True)
class Loads:
    """The shares of A's and B's tiles that a block loads from L2."""

    a: float
    b: float
    copies: Copies


@dataclass(frozen=True)
class Units:
    """A GPU's tensor cores, or its f32 FMA units, with the tiles that suit them."""

    machine: GpuMachine
    dtype: str
    """What they multiply: "f16", "bf16" or "tf32" on tensor cores, "f32" on FMA units."""

    @property
    def is_tensor(self) -> bool:
        """Whether they are tensor cores."""
        return self.dtype != "f32"

    def uses_wgmma(self, tile: GemmTile) -> bool:
        """Whether warpgroups multiply operands from shared memory (`wgmma`): 16-bit types on sm_90a."""
        return self.machine.has_warpgroups and self.item == 2 and not tile.a_from_registers

    @property
    def item(self) -> int:
        """Bytes of an operand's element."""
        return 2 if self.dtype in ("f16", "bf16") else 4

    @property
    def tiles(self) -> tuple[GemmTile, ...]:
        """All tiles."""
        if not self.is_tensor:
            return FMA_TILES
        if self.item > 2:
            return TENSOR_TILES
        return (*(WARPGROUP_TILES if self.machine.has_warpgroups else TENSOR_TILES), *TILES_FROM_REGISTERS)

    def block_ks(self, tile: GemmTile) -> tuple[int, int]:
        """The choices of BLOCK_K, the usual one first."""
        if self.uses_wgmma(tile):
            return 64, 32
        if self.is_tensor:
            return 64 // self.item, 128 // self.item
        copied = tile.block_m * 16 * self.item // VECTOR_BYTES / self.threads(tile)
        return (16, 8) if copied <= MOST_COPIED else (8, 16)

    def stages(self, tile: GemmTile, copies: Copies) -> range:
        """The numbers of stages that a block may have. Warpgroups that copy by themselves need one more, for the
        products that are still pending."""
        if copies.by_tma:
            return range(2, 9)
        return range(3, 7) if self.uses_wgmma(tile) else range(2, 5)

    def stages_in_flight(self, tile: GemmTile, stages: int, copies: Copies) -> int:
        """The number of stages in flight while others are multiplied."""
        return stages - (2 if self.uses_wgmma(tile) and not copies.by_tma else 1)

    def shared(self, tile: GemmTile, block_k: int, by_position: tuple[bool, bool]) -> tuple[SharedTile, SharedTile]:
        """A's and B's tiles in shared memory. `by_position`: for each, whether its lines lie along K (a line for each
        position) or along positions."""
        if tile.a_from_registers:
            return RegisterTile(tile.block_m, block_k, self.item, True), ColumnTile(
                tile.block_n, block_k, self.item, True
            )
        kind = SwizzledTile if self.uses_wgmma(tile) else PaddedTile
        a, b = by_position
        return kind(tile.block_m, block_k, self.item, a), kind(tile.block_n, block_k, self.item, b)

    def tile_candidates(self) -> list[int]:
        """The numbers of the tiles that fit into shared memory."""

        def needed(tile: GemmTile) -> int:
            stages = min(self.stages(tile, Copies.PAST_L1))
            return max(self.stage_bytes(tile, self.block_ks(tile)[0], stages), self.sum_bytes(tile))

        return [i for i, tile in enumerate(self.tiles) if needed(tile) <= self.machine.shared]

    def room(self, l1_bytes: int) -> int:
        """Bytes of shared memory for all blocks, if `l1_bytes` should stay in L1."""
        return min(self.machine.shared, self.machine.shared_and_l1 - l1_bytes)

    def stage_bytes(self, tile: GemmTile, block_k: int, stages: int) -> int:
        """Bytes of shared memory of a block's stages, at most."""
        lying, across = (self.shared(tile, block_k, (along, along)) for along in (True, False))
        words = sum(max(each.words for each in pair) for pair in zip(lying, across))
        return stages * (WORD * words + 2 * BARRIER_BYTES)

    def sum_bytes(self, tile: GemmTile) -> int:
        """Bytes of shared memory of a block's sums in the epilogue."""
        return ACCUMULATOR_BYTES * tile.block_m * (tile.block_n + RESULT_PAD)

    def threads(self, tile: GemmTile) -> int:
        """Threads of a block."""
        return prod(tile.workers) * (WARPGROUP if self.uses_wgmma(tile) else WARP if self.is_tensor else 1)

    def warps(self, tile: GemmTile) -> int:
        """Warps of a block."""
        return self.threads(tile) // WARP

    def issue_rate(self, tile: GemmTile, blocks: int) -> float:
        """The share of the units' speed that so many blocks reach; `wgmma` always reaches all, since it is
        asynchronous."""
        return 1.0 if self.uses_wgmma(tile) else min(1.0, blocks * self.warps(tile) / ENOUGH_WARPS)

    def warp_balance(self, tile: GemmTile, blocks: int) -> float:
        """The share of the units' speed that remains if warps do not divide evenly over the quarters of an SM."""
        warps = blocks * self.warps(tile)
        return warps / ceil_to(warps, QUARTERS)

    def occupancy(self, tile: GemmTile, block_k: int, stages: int, copies: Copies, l1_bytes: int) -> int:
        """Occupancy: the blocks that an SM runs at a time, if `l1_bytes` of each should stay in L1."""
        shared = max(self.stage_bytes(tile, block_k, stages), self.sum_bytes(tile)) + RESERVED_BYTES
        fitting = min(
            (self.machine.shared + RESERVED_BYTES) // shared, self.machine.shared_and_l1 // (shared + l1_bytes)
        )
        warps = self.warps(tile) + (1 if copies.by_tma else 0)
        return max(1, min(fitting, REGISTERS // (ceil_to(self._registers(tile), 8) * WARP * warps)))

    def _registers(self, tile: GemmTile) -> int:
        """Registers of a thread, about: for sums, operands and addresses."""
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        if self.uses_wgmma(tile):
            return rows * columns // WARPGROUP + MMA_REGISTERS
        if tile.a_from_registers:
            return rows * columns // WARP + rows + A_REGISTERS
        if self.is_tensor:
            return (rows * columns + FRAGMENT_WORDS * (rows + columns)) // WARP + MMA_REGISTERS
        return rows * columns + FMA_OPERAND_REGISTERS * (rows + columns) + FMA_REGISTERS

    def cycles(self, tile: GemmTile, loads: Loads) -> float:
        """Cycles of an SM for a block's products of one element of K: the longest of the units' time, shared memory's
        and L2's.

        Reads through L1 count as shared memory's, since both are the same memory.
        """
        a, b = tile.block_m * self.item, tile.block_n * self.item
        moved = 0.0 if tile.a_from_registers else a * (2 + loads.a) if loads.copies is Copies.CACHED else a
        way = (a * loads.a + b * loads.b) / L2_BYTES
        found = max(self._multiplying(tile), way, self._reading(tile) + (moved + b) / SHARED_BYTES)
        return found * (OVERHEAD if self.is_tensor and not self.uses_wgmma(tile) else 1.0)

    def loaded(self, tile: GemmTile, loads: Loads) -> float:
        """Bytes that a block loads from L2 for one element of K."""
        return self.item * (tile.block_m * loads.a + tile.block_n * loads.b)

    def _multiplying(self, tile: GemmTile) -> float:
        """Cycles of the units for one element of K."""
        products = float(tile.block_m * tile.block_n)
        if self.uses_wgmma(tile):
            return products / self.machine.shared_products
        if self.is_tensor:
            return products / self.machine.tensor_products * self.item / 2
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        return products / self.machine.f32_products * (1 + LOADING / min(rows, columns))

    def _reading(self, tile: GemmTile) -> float:
        """Cycles to read one element of K from shared memory, or directly; for f32 it is part of `_multiplying`."""
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        if self.uses_wgmma(tile):
            return tile.block_m * (1 + columns / WGMMA_ROWS) * tile.workers[1] * self.item / SHARED_BYTES
        if tile.a_from_registers:
            return tile.block_m * self.item / VECTOR_BYTES / WARP * A_VECTOR_CYCLES
        return prod(tile.workers) * (rows + columns) * self.item / SHARED_BYTES if self.is_tensor else 0.0
