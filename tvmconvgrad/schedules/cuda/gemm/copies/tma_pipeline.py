"""The TMA pipeline: stages that TMA fills, each with a full and an empty barrier.

    produce    for each step, a thread of a warp of its own waits on the stage's empty barrier, announces
               the bytes to the full barrier, and begins the TMA copies
    wait       the consumers: every thread that multiplies waits on the full barrier
    release    a thread of each warpgroup arrives at the empty barriers of the stage, in all blocks of the pair

So all stages but those being multiplied are in flight, however long warpgroups wait for each other. Each time that a
stage is reused, its barriers are one phase further. If two blocks share tiles, TMA multicasts a tile to the stages of
both, so a stage is empty only when the warpgroups of both have released it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm.mainloop import Pipeline
from tvmconvgrad.schedules.cuda.gemm.tiles import BARRIER_BYTES
from tvmconvgrad.schedules.cuda.hardware import WARPGROUP, WORD
from tvmconvgrad.schedules.cuda.ptx import clusters, instructions, tma
from tvmconvgrad.te.tensors import Index

BARRIER = BARRIER_BYTES // WORD
"""Words of a barrier."""


@dataclass(frozen=True)
class TmaPipeline(Pipeline):
    """A ring of stages in shared memory that TMA fills."""

    words: tirx.Buffer
    barriers: int
    """The word at which the barriers begin: the full barriers, then the empty ones."""
    steps: int
    """The number of BLOCK_K steps: none is copied that no thread waits for."""
    thread: Index
    mma_threads: int
    """The number of threads that multiply; the next one is the producer."""
    cluster: Cluster

    def begin(self) -> tirx.Stmt:
        """Initialise the barriers and make them visible to all blocks of the cluster."""
        stages = [writing.number(stage) for stage in range(self.stages)]
        full = (tma.make_barrier(self.full(stage), 1) for stage in stages)
        arrivals = self.mma_threads // WARPGROUP * self.cluster.pair
        empty = (tma.make_barrier(self._empty(stage), arrivals) for stage in stages)
        made = writing.seq(*full, *empty, tma.fence_barrier_init())
        return writing.seq(writing.when([self.thread < 1], made), self._sync())

    def copy(self, step: Index) -> tirx.Stmt | None:
        """Nothing: threads that multiply do not copy."""
        return None

    def produce(self) -> tirx.Stmt:
        """The producer: copy the operands of all steps, each when its stage is empty."""

        def copy(step: Index) -> tirx.Stmt:
            phase = step // self.stages
            wait = writing.when([phase > 0], tma.wait_phase(self._empty(step), phase - 1))
            expect = tma.expect(self.full(step), WORD * sum(self.tiles))
            return writing.seq(wait, expect, self.fill(step))

        return writing.when([self.thread < self.mma_threads + 1], writing.loop("step", self.steps, copy))

    def wait(self, step: Index, ahead: int, fence: bool = False) -> tirx.Stmt:
        """Wait until the step's tiles have arrived. TMA's writes need not be made visible to tensor cores."""
        return tma.wait_phase(self.full(step), step // self.stages)

    def release(self, step: Index) -> tirx.Stmt:
        """Release the stage of a step, if there is such a step."""
        arrive = tma.arrive(self._empty(step), self.cluster.partners if self.cluster.pair > 1 else [])
        return writing.when([step >= 0, self.thread % WARPGROUP < 1], arrive)

    def end(self) -> tirx.Stmt | None:
        """Wait until no block of the cluster writes to another's shared memory any more."""
        return self._sync() if self.cluster.pair > 1 else None

    def full(self, step: Index) -> Index:
        """The full barrier of a step's stage."""
        return writing.address(self.words, BARRIER, self.barriers + step % self.stages * BARRIER)

    def _empty(self, step: Index) -> Index:
        """The empty barrier of a step's stage."""
        return writing.address(self.words, BARRIER, self.barriers + (self.stages + step % self.stages) * BARRIER)

    def _sync(self) -> tirx.Stmt:
        return clusters.sync() if self.cluster.pair > 1 else instructions.barrier()
