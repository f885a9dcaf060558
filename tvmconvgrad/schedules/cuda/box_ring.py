"""Stages that a Hopper's engine fills, with two barriers for each: one tells when it is full, one when it is free.

    copy       thread 0 waits until the stage is free, announces its bytes, and begins its boxes
    wait       every thread waits until the stage is full
    release    a thread of each group of warps tells all blocks of the cluster that it has multiplied a stage

A stage is filled again and again: each time the barriers are a phase further. Where two blocks share tiles, a box goes
to the stages of both, and so a stage is free when the groups of both have left it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import cluster_instructions, engine_instructions, instructions, writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm_tiles import BARRIER_BYTES, WARP_GROUP
from tvmconvgrad.schedules.cuda.shared import WORD
from tvmconvgrad.schedules.cuda.summing import Ring
from tvmconvgrad.te.tensors import Index

BARRIER = BARRIER_BYTES // WORD
"""Words of a barrier."""


@dataclass(frozen=True)
class BoxRing(Ring):
    """Stages in shared memory that boxes fill."""

    words: tirx.Buffer
    barriers: int
    """The word that the barriers begin with: first those for full stages."""
    steps: int
    """How many there are: none is copied that nobody waits for."""
    thread: Index
    threads: int
    """Of a block."""
    cluster: Cluster

    def begin(self) -> tirx.Stmt:
        """Make the barriers, and let all see them."""
        stages = [writing.number(stage) for stage in range(self.stages)]
        full = (engine_instructions.make_barrier(self.full(stage), 1) for stage in stages)
        arrivals = self.threads // WARP_GROUP * self.cluster.pair
        free = (engine_instructions.make_barrier(self._free(stage), arrivals) for stage in stages)
        return writing.seq(self._by_one(*full, *free, engine_instructions.show_barriers()), self._meet())

    def copy(self, step: Index) -> tirx.Stmt:
        """Begin to copy what a step multiplies, if there is such a step."""
        turn = step // self.stages
        wait = writing.when([turn > 0], engine_instructions.wait_phase(self._free(step), turn - 1))
        expect = engine_instructions.expect(self.full(step), WORD * sum(self.tiles))
        return writing.when([step < self.steps], self._by_one(wait, expect, self.fill(step)))

    def wait(self, step: Index, ahead: int) -> tirx.Stmt:
        """Wait until the step's boxes have come."""
        return engine_instructions.wait_phase(self.full(step), step // self.stages)

    def show(self) -> tirx.Stmt | None:
        """The engine writes as tensor cores read."""
        return None

    def release(self, step: Index, kept: int = 0) -> tirx.Stmt:
        """Tell that the step before the `kept` last ones is multiplied."""
        left = step - kept - 1
        arrive = engine_instructions.arrive(self._free(left), self.cluster.partners if self.cluster.pair > 1 else [])
        return writing.when([left >= 0, self.thread % WARP_GROUP < 1], arrive)

    def end(self) -> tirx.Stmt | None:
        """From here on no block writes to another one's memory."""
        return self._meet() if self.cluster.pair > 1 else None

    def full(self, step: Index) -> Index:
        """The barrier that a step's boxes are told to."""
        return writing.address(self.words, BARRIER, self.barriers + step % self.stages * BARRIER)

    def _free(self, step: Index) -> Index:
        return writing.address(self.words, BARRIER, self.barriers + (self.stages + step % self.stages) * BARRIER)

    def _meet(self) -> tirx.Stmt:
        return cluster_instructions.meet() if self.cluster.pair > 1 else instructions.barrier()

    def _by_one(self, *statements: tirx.Stmt) -> tirx.Stmt:
        return writing.when([self.thread < 1], writing.seq(*statements))
