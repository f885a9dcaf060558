"""How long the kernel of rule.py takes: a cost model.

Its numbers were fitted to the times of candidates of ResNet-50's layers on an H100. When the model was made, its choice
was within 3 % of the best of 3,000 measured kernels. No constant below has a recorded measurement of its own.

An SM runs several blocks at a time, in waves. A block waits for its first tiles, then makes its steps, then writes its
result. A step takes as long as its products, or, if few stages are in flight, as long as a copy takes to arrive.
Meanwhile all blocks share the SM's units, the bandwidth from L2 and that from memory. So there are four times: of a
block's latency, of the SM's units, of L2 and of memory. The kernel takes about the longest of them; the others hide
behind it in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2

from tvmconvgrad.machines.gpu import LAUNCH, GpuMachine
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.shapes import GemmShape
from tvmconvgrad.schedules.cuda.gemm.tiles import ACCUMULATOR_BYTES, GemmTile, Loads, Units
from tvmconvgrad.te.tensors import ceil_to

HIDING = 2.8
"""The norm by which the four times are combined: at 1 they add up, and at infinity the shorter ones hide altogether."""
WRITING = 0.3, 0.22
"""The epilogue of a block: microseconds to begin, and cycles for each sum."""
SHARED_WRITING = 0.45
"""The share of the epilogue in which other blocks of the SM cannot multiply."""
CLUSTERED = 1.06
"""The factor of a cluster of two blocks, since they begin and end together; squared with four, and so on."""
COPYING = 1.05
"""The factor of warpgroups that copy besides multiplying."""
CLUSTER_BYTES = 20
"""Bytes that an SM reads in a cycle from the shared memory of others in its cluster, while all do."""
ADDING = 0.03
"""Microseconds for each split that the kernel which adds up splits reads."""


@dataclass(frozen=True)
class Cost:
    """The cost of a problem's kernel with one tile, BLOCK_K and one way to copy operands."""

    units: Units
    shapes: tuple[GemmShape, ...]
    groups: int
    moved: int
    """Bytes that are read from memory or written to it: operands and result, each once."""
    tile: GemmTile
    block_k: int
    copies: Copies

    @property
    def machine(self) -> GpuMachine:
        """The GPU's model."""
        return self.units.machine

    @cached_property
    def l1_bytes(self) -> int:
        """Bytes of a block that should stay in L1."""
        if self.copies is not Copies.CACHED or self.tile.a_from_registers:
            return 0
        return max(shape.reuse(self.tile.block_m, self.block_k).bytes for shape in self.shapes)

    def microseconds(self, split_k: int, in_cluster: int, stages: int) -> float:
        """Microseconds of the kernel, and of the one that adds up splits."""
        machine, mhz, blocks = self.machine, self.machine.clock_mhz, self.tiles * split_k
        cluster = in_cluster * self.copies.blocks
        sms, occupancy = machine.sms_of(cluster), self.occupancy(stages)
        waves = ceil(blocks / (sms * occupancy))
        # Large clusters fill some SMs before others have any block.
        most = waves * occupancy if cluster >= 4 else ceil(blocks / sms)
        steps, resident = self._steps(split_k), min(occupancy, most)
        shared = self._step / self.units.warp_balance(self.tile, resident)
        step = shared / self.units.issue_rate(self.tile, resident)
        writing = WRITING[0] * mhz + WRITING[1] * self.tile.block_m * self.tile.block_n
        late = max(step, machine.latency_us * mhz / self.units.stages_in_flight(self.tile, stages, self.copies))
        times = (
            waves * (machine.latency_us * mhz + steps * late + writing),
            most * (steps * shared + SHARED_WRITING * writing),
            blocks * steps * self._loaded / machine.sms / machine.l2_bytes_per_cycle,
            self.moved / machine.bytes_per_us * mhz,
        )
        found: float = sum(time**HIDING for time in times) ** (1 / HIDING) / mhz
        copying = 1.0 if self.copies.by_tma or not self.units.uses_wgmma(self.tile) else COPYING
        found = LAUNCH + found * copying * CLUSTERED ** log2(cluster)
        if in_cluster > 1:
            found += ACCUMULATOR_BYTES * self.tile.block_m * self.tile.block_n / CLUSTER_BYTES / mhz
        return found + self._adding(split_k // in_cluster)

    def occupancy(self, stages: int) -> int:
        """Occupancy: the blocks that an SM runs at a time."""
        return self.units.occupancy(self.tile, self.block_k, stages, self.copies, self.l1_bytes)

    @cached_property
    def tiles(self) -> int:
        """All tiles of one split, in whole pairs."""
        return sum(self._tiles(shape) for shape in self.shapes)

    def _tiles(self, shape: GemmShape) -> int:
        rows, columns = self.copies.pair
        along_rows = ceil_to(ceil(shape.m / self.tile.block_m), rows)
        return self.groups * along_rows * ceil_to(ceil(shape.n / self.tile.block_n), columns)

    def _steps(self, split_k: int) -> float:
        """The number of BLOCK_K steps of a block; with several products, their mean."""
        return sum(self._tiles(shape) * ceil(shape.k / split_k / self.block_k) for shape in self.shapes) / self.tiles

    @cached_property
    def _loads(self) -> list[Loads]:
        """For each product, the share of its tiles that is read from L2."""
        if self.copies is Copies.CACHED:
            return [Loads(shape.reuse(self.tile.block_m, self.block_k).new, 1.0, self.copies) for shape in self.shapes]
        a, b = (0.5 if shared else 1.0 for shared in self.copies.shared)
        return [Loads(a, b, self.copies)] * len(self.shapes)

    @cached_property
    def _step(self) -> float:
        """Cycles of an SM for a BLOCK_K step."""
        return self.block_k * max(self.units.cycles(self.tile, loads) for loads in self._loads)

    @cached_property
    def _loaded(self) -> float:
        """Bytes from L2 for a BLOCK_K step."""
        return self.block_k * max(self.units.loaded(self.tile, loads) for loads in self._loads)

    def _adding(self, count: int) -> float:
        """Microseconds of the kernel that adds up so many partial sums."""
        if count == 1:
            return 0.0
        sums = self.groups * sum(shape.m * shape.n for shape in self.shapes)
        return LAUNCH + ACCUMULATOR_BYTES * count * sums / self.machine.bytes_per_us + ADDING * count
