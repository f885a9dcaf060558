"""Stages that TMA fills, with two barriers for each: one tells when it is full, one when it is free.

    supply     a thread of a warp that does nothing else waits, for one step after the other, until its stage is free,
               announces the bytes, and begins the boxes
    wait       every thread that multiplies waits until the stage is full
    leave      a thread of each group of warps tells all blocks of the cluster that it has multiplied a stage

So all stages but those that are multiplied are under way, however long the groups wait for each other. A stage is
filled again and again: each time the barriers are a phase further. Where two blocks share tiles, a box goes to the
stages of both, and so a stage is free when the groups of both have left it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import WORD
from tvmconvgrad.schedules.cuda.gemm.mainloop import Pipeline
from tvmconvgrad.schedules.cuda.gemm.tiles import BARRIER_BYTES, WARP_GROUP
from tvmconvgrad.schedules.cuda.ptx import base, clusters, tma
from tvmconvgrad.te.tensors import Index

BARRIER = BARRIER_BYTES // WORD
"""Words of a barrier."""


@dataclass(frozen=True)
class TmaPipeline(Pipeline):
    """Stages in shared memory that boxes fill."""

    words: tirx.Buffer
    barriers: int
    """The word that the barriers begin with: first those for full stages."""
    steps: int
    """How many there are: none is copied that nobody waits for."""
    thread: Index
    workers: int
    """How many threads multiply; the one behind them supplies."""
    cluster: Cluster

    def begin(self) -> tirx.Stmt:
        """Make the barriers, and let all see them."""
        stages = [writing.number(stage) for stage in range(self.stages)]
        full = (tma.make_barrier(self.full(stage), 1) for stage in stages)
        arrivals = self.workers // WARP_GROUP * self.cluster.pair
        free = (tma.make_barrier(self._free(stage), arrivals) for stage in stages)
        made = writing.seq(*full, *free, tma.show_barriers())
        return writing.seq(writing.when([self.thread < 1], made), self._meet())

    def copy(self, step: Index) -> tirx.Stmt | None:
        """Who multiplies does not copy."""
        return None

    def supply(self) -> tirx.Stmt:
        """Copy what all steps multiply, as stages get free."""

        def copy(step: Index) -> tirx.Stmt:
            turn = step // self.stages
            wait = writing.when([turn > 0], tma.wait_phase(self._free(step), turn - 1))
            expect = tma.expect(self.full(step), WORD * sum(self.tiles))
            return writing.seq(wait, expect, self.fill(step))

        return writing.when([self.thread < self.workers + 1], writing.loop("step", self.steps, copy))

    def wait(self, step: Index, ahead: int, shown: bool = False) -> tirx.Stmt:
        """Wait until the step's boxes have come; TMA writes as tensor cores read."""
        return tma.wait_phase(self.full(step), step // self.stages)

    def leave(self, step: Index) -> tirx.Stmt:
        """Tell that a step is multiplied, if there is such a step."""
        arrive = tma.arrive(self._free(step), self.cluster.partners if self.cluster.pair > 1 else [])
        return writing.when([step >= 0, self.thread % WARP_GROUP < 1], arrive)

    def end(self) -> tirx.Stmt | None:
        """From here on no block writes to another one's memory."""
        return self._meet() if self.cluster.pair > 1 else None

    def full(self, step: Index) -> Index:
        """The barrier that a step's boxes are told to."""
        return writing.address(self.words, BARRIER, self.barriers + step % self.stages * BARRIER)

    def _free(self, step: Index) -> Index:
        return writing.address(self.words, BARRIER, self.barriers + (self.stages + step % self.stages) * BARRIER)

    def _meet(self) -> tirx.Stmt:
        return clusters.meet() if self.cluster.pair > 1 else base.barrier()
