"""The main loop: stages in shared memory that copies fill ahead, and the loop of units that multiply from registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.ptx import instructions, wgmma
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class Pipeline:
    """A ring of stages in shared memory, which BLOCK_K steps fill in turn."""

    stages: int
    tiles: tuple[int, int]
    """The words of A's tile and of B's."""
    fill: Callable[[Index], tirx.Stmt]
    """Begins to copy a step's operands to its stage."""
    vector: Callable[[Index, Index, Index], tuple[Index, Index]] | None = field(default=None, kw_only=True)
    """For A that is not in shared memory: the address of the vector at (step, row, k), and whether it is data, not
    zero."""

    def begins(self, step: Index) -> tuple[Index, Index]:
        """Where a step's tiles of A and B begin."""
        begin = step % self.stages * sum(self.tiles)
        return begin, begin + self.tiles[0]

    def begin(self) -> tirx.Stmt | None:
        """The prologue: what precedes the first copies."""
        return None

    def copy(self, step: Index) -> tirx.Stmt | None:
        """Begin to copy a step's operands, as one commit group."""
        return writing.seq(self.fill(step), instructions.commit())

    def wait(self, step: Index, ahead: int, fence: bool = False) -> tirx.Stmt:
        """Wait until the copies of a step have arrived; those of `ahead` steps are in flight. `fence`: make them
        visible to tensor cores that read shared memory. After it, no thread reads earlier stages."""
        proxy_fence = wgmma.fence_proxy_async() if fence else None
        return writing.seq(instructions.wait(ahead - 1), proxy_fence, instructions.barrier())

    def release(self, step: Index) -> tirx.Stmt | None:
        """Release a step's stage, if the wait for a later step does not imply it."""
        return None

    def produce(self) -> tirx.Stmt | None:
        """The producer: what a warp does that only copies, if there is one."""
        return None

    def end(self) -> tirx.Stmt | None:
        """What follows the last step, before shared memory is used for the sums."""
        return instructions.wait(0)


Registers = tuple[tirx.Buffer, ...]


class RegisterMainloop(ABC):
    """Units that multiply operands from registers, to which threads load them from shared memory."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of parts of BLOCK_K that are loaded and multiplied one after the other."""

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
        """The copies of the first steps, and the loop over all `count` steps.

        Registers are double-buffered: a part is multiplied while the next one is loaded. So the wait for a stage lies
        before the last products of the stage before. Nobody reads that one any more, so copies to it begin there.
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
