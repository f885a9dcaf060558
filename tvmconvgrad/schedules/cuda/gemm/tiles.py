"""The tiles of schedules/cuda/gemm/rule.py, and how fast a GPU computes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import WORD, ColumnTile, PaddedTile, SharedTile, UnsharedTile
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import SwizzledTile
from tvmconvgrad.schedules.cuda.gemm.operands import VECTOR_BYTES
from tvmconvgrad.te.tensors import ceil_to

ENOUGH_WARPS = 8
"""Warps that an SM needs, so that some multiply while others wait."""
SHARED_BYTES = 128
"""Bytes that an SM reads from shared memory, or writes, in a cycle."""
L2_BYTES = 64
"""Bytes that one SM loads from the L2 cache in a cycle, if others don't (`Machine.l2_bytes`)."""
QUARTERS = 4
"""Of an SM, which have units and warps of their own."""
REGISTERS = 1 << 16
"""Of an SM."""
ACCUMULATOR_BYTES = 4
BARRIER_BYTES = 8
"""Of two for each stage, if TMA fills it."""
WARP = 32
WARP_GROUP = 4 * WARP
GROUP_ROWS = 64
"""Of an instruction."""
LOADING = 2.0
"""What loading operands costs a thread that has one row, as part of its products."""
DIRECT_CYCLES = 24 / 4
"""Of an SM's four schedulers, for the instructions that come with a warp's direct read of vectors: their addresses,
whether they are inside, zeros, products."""
MOST_COPIED = 8
"""Vectors of A's stage that a thread copies at most, of f32: it keeps their addresses in registers."""
BESIDE = 1.15
"""What is done beside the products, of warps that wait for them: copies and their addresses, barriers."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, for each block."""


@dataclass(frozen=True)
class GemmTile:
    """What a block computes, and by how many workers along rows and along columns: warps, groups of four warps, or, of
    f32, threads."""

    block_m: int
    block_n: int
    workers: tuple[int, int]
    direct: bool = False
    """Whether warps read A where it lies, and not from shared memory (units/tensor_cores_from_registers.py)."""


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
"""Warps have up to 64 x 64 sums: then they read little from shared memory for each product."""

GROUP_TILES = (
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
"""Groups of warps have all columns: then each reads B once for all of its 64 or 128 rows."""

DIRECT_TILES = (
    GemmTile(256, 8, (4, 1), True),
    GemmTile(256, 16, (4, 1), True),
    GemmTile(128, 16, (4, 1), True),
    GemmTile(128, 32, (4, 1), True),
)
"""For 16 bits, all columns, which are few, and vectors along summed elements."""

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
"""Threads have up to 8 x 8 sums. The last one is for the data gradients of first layers."""


@dataclass(frozen=True)
class Loads:
    """Which parts of A's and B's tiles a block has to load from the L2 cache."""

    a: float
    b: float
    copies: Copies


@dataclass(frozen=True)
class Units:
    """A GPU's tensor cores, or its units for f32, with the tiles that suit them."""

    machine: GpuMachine
    dtype: str
    """What they multiply: "f16", "bf16" or "tf32" on tensor cores, "f32" on its own units."""

    @property
    def is_tensor(self) -> bool:
        """Whether they are tensor cores."""
        return self.dtype != "f32"

    def by_groups(self, tile: GemmTile) -> bool:
        """Whether groups of four warps multiply what lies in shared memory: 16 bits, along lines and across them."""
        return self.machine.has_warp_groups and self.item == 2 and not tile.direct

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
        return (*(GROUP_TILES if self.machine.has_warp_groups else TENSOR_TILES), *DIRECT_TILES)

    def depths(self, tile: GemmTile) -> tuple[int, int]:
        """Summed elements of a stage, the usual number first."""
        if self.by_groups(tile):
            return 64, 32
        if self.is_tensor:
            return 64 // self.item, 128 // self.item
        copied = tile.block_m * 16 * self.item // VECTOR_BYTES / self.threads(tile)
        return (16, 8) if copied <= MOST_COPIED else (8, 16)

    def stages(self, tile: GemmTile, copies: Copies) -> range:
        """How many stages a block may have. Groups of warps that copy need one more, which they may still multiply."""
        if copies.by_engine:
            return range(2, 9)
        return range(3, 7) if self.by_groups(tile) else range(2, 5)

    def ahead(self, tile: GemmTile, stages: int, copies: Copies) -> int:
        """How many of the stages are under way while others are multiplied."""
        return stages - (2 if self.by_groups(tile) and not copies.by_engine else 1)

    def shared(self, tile: GemmTile, block_k: int, by_position: tuple[bool, bool]) -> tuple[SharedTile, SharedTile]:
        """A's and B's tiles in shared memory, with lines of positions, or of summed elements."""
        if tile.direct:
            return UnsharedTile(tile.block_m, block_k, self.item, True), ColumnTile(
                tile.block_n, block_k, self.item, True
            )
        kind = SwizzledTile if self.by_groups(tile) else PaddedTile
        a, b = by_position
        return kind(tile.block_m, block_k, self.item, a), kind(tile.block_n, block_k, self.item, b)

    def usable(self) -> list[int]:
        """The tiles that fit into shared memory, by their numbers."""

        def needed(tile: GemmTile) -> int:
            stages = min(self.stages(tile, Copies.PAST_L1))
            return max(self.stage_bytes(tile, self.depths(tile)[0], stages), self.sum_bytes(tile))

        return [i for i, tile in enumerate(self.tiles) if needed(tile) <= self.machine.shared]

    def room(self, kept: int) -> int:
        """Shared memory of all blocks, where so many bytes have to stay in the L1 cache."""
        return min(self.machine.shared, self.machine.shared_and_l1 - kept)

    def stage_bytes(self, tile: GemmTile, block_k: int, stages: int) -> int:
        """Shared memory of a block's stages, at most."""
        lying, across = (self.shared(tile, block_k, (along, along)) for along in (True, False))
        words = sum(max(each.words for each in pair) for pair in zip(lying, across))
        return stages * (WORD * words + 2 * BARRIER_BYTES)

    def sum_bytes(self, tile: GemmTile) -> int:
        """Shared memory of a block's sums, on their way to the result."""
        return ACCUMULATOR_BYTES * tile.block_m * (tile.block_n + 8)

    def threads(self, tile: GemmTile) -> int:
        """Threads of a block."""
        return prod(tile.workers) * (WARP_GROUP if self.by_groups(tile) else WARP if self.is_tensor else 1)

    def warps(self, tile: GemmTile) -> int:
        """Warps of a block."""
        return self.threads(tile) // WARP

    def busy(self, tile: GemmTile, together: int) -> float:
        """The part of the units' speed that so many blocks reach: groups of warps do not wait for products."""
        return 1.0 if self.by_groups(tile) else min(1.0, together * self.warps(tile) / ENOUGH_WARPS)

    def even(self, tile: GemmTile, together: int) -> float:
        """The part of the units' speed that so many blocks leave, as each quarter of an SM has some of the warps."""
        warps = together * self.warps(tile)
        return warps / ceil_to(warps, QUARTERS)

    def together(self, tile: GemmTile, block_k: int, stages: int, copies: Copies, kept: int) -> int:
        """Blocks that an SM has at a time, if so many bytes of each have to stay in the L1 cache."""
        shared = max(self.stage_bytes(tile, block_k, stages), self.sum_bytes(tile)) + RESERVED_BYTES
        fitting = min((self.machine.shared + RESERVED_BYTES) // shared, self.machine.shared_and_l1 // (shared + kept))
        warps = self.warps(tile) + (1 if copies.by_engine else 0)
        return max(1, min(fitting, REGISTERS // (ceil_to(self._registers(tile), 8) * WARP * warps)))

    def _registers(self, tile: GemmTile) -> int:
        """Registers of a thread, about: its sums, what it multiplies and loads meanwhile, and addresses."""
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        if self.by_groups(tile):
            return rows * columns // WARP_GROUP + 32
        if tile.direct:
            return rows * columns // WARP + rows + 70
        if self.is_tensor:
            return (rows * columns + 16 * (rows + columns)) // WARP + 32
        return rows * columns + 5 * (rows + columns) + 24

    def cycles(self, tile: GemmTile, loads: Loads) -> float:
        """Cycles of an SM for a block's products of one summed element: of the units, of shared memory, or of its way
        from the L2 cache.

        The L1 cache is the same memory as the shared one.
        """
        a, b = tile.block_m * self.item, tile.block_n * self.item
        moved = 0.0 if tile.direct else a * (2 + loads.a) if loads.copies is Copies.CACHED else a
        way = (a * loads.a + b * loads.b) / L2_BYTES
        found = max(self._multiplying(tile), way, self._reading(tile) + (moved + b) / SHARED_BYTES)
        return found * (BESIDE if self.is_tensor and not self.by_groups(tile) else 1.0)

    def loaded(self, tile: GemmTile, loads: Loads) -> float:
        """Bytes that a block loads from the L2 cache for one summed element."""
        return self.item * (tile.block_m * loads.a + tile.block_n * loads.b)

    def _multiplying(self, tile: GemmTile) -> float:
        """Cycles of the units for one summed element."""
        products = float(tile.block_m * tile.block_n)
        if self.by_groups(tile):
            return products / self.machine.shared_products
        if self.is_tensor:
            return products / self.machine.tensor_products * self.item / 2
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        return products / self.machine.f32_products * (1 + LOADING / min(rows, columns))

    def _reading(self, tile: GemmTile) -> float:
        """Cycles that it takes to read a summed element from shared memory, or directly; of f32 it is counted with the
        products."""
        rows, columns = tile.block_m // tile.workers[0], tile.block_n // tile.workers[1]
        if self.by_groups(tile):
            return tile.block_m * (1 + columns / GROUP_ROWS) * tile.workers[1] * self.item / SHARED_BYTES
        if tile.direct:
            return tile.block_m * self.item / VECTOR_BYTES / WARP * DIRECT_CYCLES
        return prod(tile.workers) * (rows + columns) * self.item / SHARED_BYTES if self.is_tensor else 0.0
