"""A block's sum over its stages: the stages in shared memory, and the loop of units that load to registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.ptx import base, wgmma
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class Pipeline:
    """Stages in shared memory, which steps fill one after the other, and then again."""

    stages: int
    tiles: tuple[int, int]
    """Words of A's tile and of B's."""
    fill: Callable[[Index], tirx.Stmt]
    """Begins to copy what a step multiplies to its stage."""
    vector: Callable[[Index, Index, Index], tuple[Index, Index]] | None = field(default=None, kw_only=True)
    """Where A's vector lies that begins with a step's row and summed element, and whether it is not zero: for tiles
    that are not in shared memory."""

    def begins(self, step: Index) -> tuple[Index, Index]:
        """Where a step's tiles of A and B begin."""
        begin = step % self.stages * sum(self.tiles)
        return begin, begin + self.tiles[0]

    def begin(self) -> tirx.Stmt | None:
        """What has to be done before the first copies."""
        return None

    def copy(self, step: Index) -> tirx.Stmt | None:
        """Begin to copy what a step multiplies, as a group of copies."""
        return writing.seq(self.fill(step), base.commit())

    def wait(self, step: Index, ahead: int, shown: bool = False) -> tirx.Stmt:
        """Wait until all copies of a step have come, of the `ahead` steps whose copies are under way; and let tensor
        cores that read shared memory by themselves see them. What threads have read before, they read no more."""
        show = wgmma.show_copies() if shown else None
        return writing.seq(base.wait(ahead - 1), show, base.barrier())

    def leave(self, step: Index) -> tirx.Stmt | None:
        """Let it be known that a step's stage is read no more, if the wait for another step does not tell."""
        return None

    def supply(self) -> tirx.Stmt | None:
        """What a warp does that copies, beside those that multiply."""
        return None

    def end(self) -> tirx.Stmt | None:
        """What has to be done after the last step, before stages are used otherwise."""
        return base.wait(0)


Registers = tuple[tirx.Buffer, ...]


class ThroughRegisters(ABC):
    """Units that multiply what threads have loaded from shared memory to their registers."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Into how many parts a stage's summed elements fall, which are loaded and multiplied one after the other."""

    @abstractmethod
    def load(
        self, registers: Registers, words: tirx.Buffer, begins: tuple[Index, Index], k: int, thread: Index
    ) -> tirx.Stmt:
        """Load the k-th part of a stage, whose tiles of A and B begin at these words."""

    @abstractmethod
    def multiply(self, registers: Registers, k: int) -> tirx.Stmt:
        """Add the products of the k-th part to the sums."""

    def sum(
        self, words: tirx.Buffer, registers: Registers, pipeline: Pipeline, count: int, thread: Index
    ) -> list[tirx.Stmt]:
        """Copies ahead of the first of `count` steps, and the loop over all of them.

        What is loaded to registers is multiplied a part later. So the wait for a stage falls among the last products of
        the one before. From then on nobody reads of the latter, and copies begin to take its place.
        """
        ahead = pipeline.stages - 1

        def load(step: Index, k: int) -> tirx.Stmt:
            at, first = step + k // self.steps, k % self.steps == 0
            loads = self.load(registers, words, pipeline.begins(at), k % self.steps, thread)
            if not first:
                return loads
            return writing.seq(pipeline.wait(at, ahead), loads, pipeline.copy(at + ahead))

        def multiply(step: Index) -> tirx.Stmt:
            parts = ((load(step, k + 1), self.multiply(registers, k)) for k in range(self.steps))
            return writing.seq(*(each for part in parts for each in part))

        copies = [pipeline.copy(writing.number(step)) for step in range(ahead)]
        return [*copies, load(writing.number(0), 0), writing.loop("step", count, multiply)]
