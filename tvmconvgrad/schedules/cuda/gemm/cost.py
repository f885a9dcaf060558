"""How long the kernel of rule.py takes: a model of the machine, whose numbers were measured on an H100.

Some blocks are on an SM together, and each slot takes one block after the other. A block waits for its first tiles,
then makes its steps, each as long as its products or, where few stages are under way, as a copy takes to come; then it
writes its result. Meanwhile all blocks share the SM's units and the ways from the L2 cache and from memory. The longest
of these times is about how long it takes, and the others hide behind it in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2

from tvmconvgrad.machines.gpu import LAUNCH, GpuMachine
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.sizes import Size
from tvmconvgrad.schedules.cuda.gemm.tiles import ACCUMULATOR_BYTES, GemmTile, Loads, Units
from tvmconvgrad.te.tensors import ceil_to

HIDING = 2.8
"""How well the shorter times hide behind the longest one: at 1 not at all, and all of them at infinity."""
WRITING = 0.3, 0.22
"""Of a block that writes its result: microseconds until it has begun, and cycles for each sum."""
SHARED_WRITING = 0.45
"""The part of it in which other blocks of the SM cannot multiply."""
CLUSTERED = 1.06
"""What it costs that twice as many blocks begin and end together, as a cluster."""
COPYING = 1.05
"""What it costs that groups of warps copy, beside what they multiply."""
CLUSTER_BYTES = 20
"""Bytes that an SM reads in a cycle from others of its cluster, while all do."""
ADDING = 0.03
"""Microseconds for each of the splits that a further kernel adds up."""


@dataclass(frozen=True)
class Cost:
    """Of a problem's kernel with one tile, `depth` summed elements a step, whose operands are copied in one way."""

    units: Units
    sizes: tuple[Size, ...]
    groups: int
    moved: int
    """Bytes that come from memory, or go there, at least."""
    tile: GemmTile
    block_k: int
    copies: Copies

    @property
    def machine(self) -> GpuMachine:
        """What it runs on."""
        return self.units.machine

    @cached_property
    def kept(self) -> int:
        """Bytes of a block that have to stay in the L1 cache."""
        if self.copies is not Copies.CACHED or self.tile.direct:
            return 0
        return max(size.reuse(self.tile.block_m, self.block_k).bytes for size in self.sizes)

    def microseconds(self, split_k: int, in_cluster: int, stages: int) -> float:
        """Of the kernel, and of adding the splits up."""
        machine, cycles, blocks = self.machine, self.machine.cycles, self.tiles * split_k
        cluster = in_cluster * self.copies.blocks
        processors, together = machine.processors_of(cluster), self.together(stages)
        waves = ceil(blocks / (processors * together))
        # large clusters fill some SMs before others have any
        most = waves * together if cluster >= 4 else ceil(blocks / processors)
        steps, resident = self._steps(split_k), min(together, most)
        shared = self._step / self.units.even(self.tile, resident)
        step = shared / self.units.busy(self.tile, resident)
        writing = WRITING[0] * cycles + WRITING[1] * self.tile.block_m * self.tile.block_n
        late = max(step, machine.latency * cycles / self.units.ahead(self.tile, stages, self.copies))
        times = (
            waves * (machine.latency * cycles + steps * late + writing),
            most * (steps * shared + SHARED_WRITING * writing),
            blocks * steps * self._loaded / machine.processors / machine.l2_bytes,
            self.moved / machine.bytes * cycles,
        )
        found: float = sum(time**HIDING for time in times) ** (1 / HIDING) / cycles
        copying = 1.0 if self.copies.by_engine or not self.units.by_groups(self.tile) else COPYING
        found = LAUNCH + found * copying * CLUSTERED ** log2(cluster)
        if in_cluster > 1:
            found += ACCUMULATOR_BYTES * self.tile.block_m * self.tile.block_n / CLUSTER_BYTES / cycles
        return found + self._adding(split_k // in_cluster)

    def together(self, stages: int) -> int:
        """Blocks that an SM has at a time."""
        return self.units.together(self.tile, self.block_k, stages, self.copies, self.kept)

    @cached_property
    def tiles(self) -> int:
        """All of a split, in whole pairs."""
        return sum(self._tiles(size) for size in self.sizes)

    def _tiles(self, size: Size) -> int:
        rows, columns = self.copies.pair
        along_rows = ceil_to(ceil(size.rows / self.tile.block_m), rows)
        return self.groups * along_rows * ceil_to(ceil(size.columns / self.tile.block_n), columns)

    def _steps(self, split_k: int) -> float:
        """Of a block: of those of several products, on average."""
        return sum(self._tiles(size) * ceil(size.summed / split_k / self.block_k) for size in self.sizes) / self.tiles

    @cached_property
    def _loads(self) -> list[Loads]:
        """What comes from the L2 cache, of each product's tiles."""
        if self.copies is Copies.CACHED:
            return [Loads(size.reuse(self.tile.block_m, self.block_k).new, 1.0, self.copies) for size in self.sizes]
        a, b = (0.5 if shared else 1.0 for shared in self.copies.shared)
        return [Loads(a, b, self.copies)] * len(self.sizes)

    @cached_property
    def _step(self) -> float:
        """Cycles of an SM for a step."""
        return self.block_k * max(self.units.cycles(self.tile, loads) for loads in self._loads)

    @cached_property
    def _loaded(self) -> float:
        """Bytes from the L2 cache for a step."""
        return self.block_k * max(self.units.loaded(self.tile, loads) for loads in self._loads)

    def _adding(self, count: int) -> float:
        """Microseconds of the kernel that adds so many partial sums up."""
        if count == 1:
            return 0.0
        sums = self.groups * sum(size.rows * size.columns for size in self.sizes)
        return LAUNCH + ACCUMULATOR_BYTES * count * sums / self.machine.bytes + ADDING * count
