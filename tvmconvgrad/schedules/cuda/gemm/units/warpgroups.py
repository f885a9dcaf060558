"""A block's tile on Hopper's tensor cores: warpgroups multiply operands in shared memory, by `wgmma`.

An instruction adds the products of 64 rows, up to 256 columns and 16 elements of K, of 16 bits, to f32 sums in the
registers of a warpgroup: four warps. It reads both operands from shared memory, asynchronously: warps copy and compute
addresses meanwhile. Each warp of the group has 16 of the rows, in the fragments of `mma` (tensor_cores.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import SwizzledTile
from tvmconvgrad.schedules.cuda.gemm.mainloop import Pipeline, Registers
from tvmconvgrad.schedules.cuda.gemm.tiles import WGMMA_ROWS
from tvmconvgrad.schedules.cuda.gemm.units.tensor_cores import COLUMNS, FRAGMENT, ROWS, store_fragments
from tvmconvgrad.schedules.cuda.hardware import WARP, WARPGROUP
from tvmconvgrad.schedules.cuda.ptx import wgmma
from tvmconvgrad.te.tensors import Index

MMA_K = 16
"""Elements of K of an instruction."""
PENDING = 1
"""Products of so many steps may be pending while those of the next one begin, so tensor cores never wait for a
barrier."""


@dataclass(frozen=True)
class Warpgroups:
    """The warpgroups' shares of a tile. Each has a multiple of 64 rows."""

    dtype: str
    a: SwizzledTile
    b: SwizzledTile
    groups: tuple[int, int]
    """Warpgroups along rows and along columns."""

    @property
    def rows(self) -> int:
        """Rows of a group, in instructions."""
        return self.a.positions // self.groups[0] // WGMMA_ROWS

    @property
    def columns(self) -> int:
        """Columns of a group."""
        return self.b.positions // self.groups[1]

    def registers(self) -> Registers:
        """The sums."""
        return (writing.memory("sums", (self.rows * self._sums,), "float32", "local"),)

    def sum(
        self, words: tirx.Buffer, registers: Registers, pipeline: Pipeline, count: int, thread: Index
    ) -> list[tirx.Stmt]:
        """The copies of the first steps, the loop over `count` steps, and the wait for the last products.

        A step begins its products when its tiles have arrived, and ends when the products of the step before are done.
        All threads know that when the next step begins, and then copy to the stage of the step before last.
        """
        ahead = pipeline.stages - 1 - PENDING

        def step(at: Index) -> tirx.Stmt:
            return writing.seq(
                pipeline.wait(at, ahead, fence=True),
                wgmma.begin_products(),
                self._multiply(registers[0], words, pipeline.begins(at), thread),
                wgmma.commit_products(),
                pipeline.copy(at + ahead),
                wgmma.wait_products(PENDING),
                pipeline.release(at - PENDING),
            )

        copies = [pipeline.copy(writing.number(at)) for at in range(ahead)]
        return [*copies, writing.loop("step", count, step), wgmma.wait_products(0)]

    def _multiply(self, sums: tirx.Buffer, words: tirx.Buffer, begins: tuple[Index, Index], thread: Index) -> tirx.Stmt:
        """Begin all products of a stage, whose tiles of A and B begin at these words."""
        row, column, _ = self._first(thread)

        def multiply(i: int, k: Index) -> tirx.Stmt:
            to = writing.address(sums, FRAGMENT, i * self._sums)
            of_a = self.a.matrix(words, begins[0], row + i * WGMMA_ROWS, k)
            of_b = self.b.matrix(words, begins[1], column, k)
            return wgmma.multiply_shared(self.dtype, self.columns, to, of_a, of_b)

        steps = map(writing.number, range(0, self.a.block_k, MMA_K))
        return writing.seq(*(multiply(i, k) for k in steps for i in range(self.rows)))

    def store_sums(self, registers: Registers, words: tirx.Buffer, stride: int, thread: Index) -> tirx.Stmt:
        """Store the sums to shared memory as rows that are `stride` words apart."""
        row, column, within = self._first(thread)
        first = row + within // WARP * ROWS, column
        shape = self.rows, self.columns // COLUMNS
        return store_fragments(registers[0], words, stride, shape, WGMMA_ROWS, first, within % WARP)

    @property
    def _sums(self) -> int:
        """Sums of a thread for one instruction."""
        return WGMMA_ROWS * self.columns // WARPGROUP

    def _first(self, thread: Index) -> tuple[Index, Index, Index]:
        """The first row and column of a thread's group, and the thread's number within."""
        group, within = thread // WARPGROUP, thread % WARPGROUP
        row, column = group // self.groups[1] * self.rows * WGMMA_ROWS, group % self.groups[1] * self.columns
        return row, column, within
