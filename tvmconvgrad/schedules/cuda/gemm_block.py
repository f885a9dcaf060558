"""The kernel of schedules/cuda/gemm.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import instructions, storing, writing
from tvmconvgrad.schedules.cuda.fma_units import FmaUnits
from tvmconvgrad.schedules.cuda.gemm_plan import Plan
from tvmconvgrad.schedules.cuda.operands import Operand
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.shared import Copier, Place, SharedTile
from tvmconvgrad.schedules.cuda.storing import Results
from tvmconvgrad.schedules.cuda.tensor_cores import WARP, TensorCores
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.tensors import ACCUMULATOR, Index

RESULT_PAD = 8
"""Words between rows of sums in shared memory: lanes of a fragment then write to different banks."""


@dataclass(frozen=True)
class Block:
    """One product's kernel: what each of its blocks does."""

    product: Product
    operands: tuple[Operand, Operand]
    plan: Plan
    results: Results

    @property
    def tiles(self) -> tuple[SharedTile, SharedTile]:
        """A's and B's tiles in shared memory."""
        item, depth = ITEM_BYTES[self.product.problem.dtype], self.plan.depth
        a, b = self.operands
        return (
            SharedTile(self.plan.tile.rows, depth, item, a.along == "summed"),
            SharedTile(self.plan.tile.columns, depth, item, b.along == "summed"),
        )

    @property
    def units(self) -> TensorCores | FmaUnits:
        """What multiplies."""
        if self.plan.dtype == "f32":
            return FmaUnits(*self.tiles, self.plan.tile.workers)
        return TensorCores(self.plan.dtype, *self.tiles, self.plan.tile.workers)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        rows, columns = self.plan.tile.workers
        return rows * columns * (1 if self.plan.dtype == "f32" else WARP)

    @property
    def steps(self) -> int:
        """Stages that a block adds up."""
        return -(-self.product.summed // self.plan.depth // self.plan.splits)

    @property
    def splits(self) -> int:
        """Parts of the sum, none of which is empty."""
        return -(-self.product.summed // (self.plan.depth * self.steps))

    @cached_property
    def partial(self) -> tirx.Buffer | None:
        """The sums of each split; None where there is one."""
        if self.splits == 1:
            return None
        product = self.product
        shape = (self.splits, product.groups, product.rows, product.columns)
        return writing.memory(f"{product.sum.name}_partial", shape, ACCUMULATOR, "global")

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """Splits, groups, tiles of rows, tiles of columns."""
        rows = -(-self.product.rows // self.plan.tile.rows)
        return self.splits, self.product.groups, rows, -(-self.product.columns // self.plan.tile.columns)

    @property
    def stage_words(self) -> int:
        """Shared memory of a stage."""
        return sum(tile.words for tile in self.tiles)

    @property
    def stride(self) -> int:
        """Words between rows of sums in shared memory."""
        in_vectors = self.partial is not None or self.results.by_columns
        return self.plan.tile.columns + (RESULT_PAD if in_vectors else 1)

    @property
    def words(self) -> int:
        """Shared memory of a block: for stages first, then for the sums."""
        return max(self.plan.stages * self.stage_words, self.plan.tile.rows * self.stride)

    @property
    def count(self) -> int:
        """Blocks of the kernel."""
        return prod(self.grid)

    def body(self, words: tirx.Buffer, registers: tuple[tirx.Buffer, ...], block: Index, thread: Index) -> tirx.Stmt:
        """What a thread of a block does."""
        split, group, i, j = writing.unflatten(block, self.grid)
        row, column = i * self.plan.tile.rows, j * self.plan.tile.columns
        length = self.steps * self.plan.depth
        begin, all_summed = split * length, number(self.product.summed)
        end = all_summed if self.splits == 1 else tirx.min(begin + length, all_summed)
        return writing.seq(
            writing.clear(registers[0]),
            *self._sum(words, registers, Place(group, row, column, begin, end), thread),
            instructions.wait(0),
            instructions.barrier(),
            self.units.spill(registers, words, self.stride, thread),
            instructions.barrier(),
            self._write(words, split, (group, row, column), thread),
        )

    def _sum(
        self, words: tirx.Buffer, registers: tuple[tirx.Buffer, ...], place: Place, thread: Index
    ) -> list[tirx.Stmt]:
        """Copies ahead of the first stage, and the loop over all stages.

        What is loaded to registers is multiplied a step later. So the wait for a stage falls among the last products of
        the one before. From then on nobody reads of the latter, and copies begin to take its place.
        """
        units, ahead = self.units, self.plan.stages - 1

        def copy(at: Index) -> tirx.Stmt:
            return writing.seq(self._copy(words, at, place, thread), instructions.commit())

        def load(at: Index, k: int) -> tirx.Stmt:
            stage, first = at + k // units.steps, k % units.steps == 0
            begin = stage % self.plan.stages * self.stage_words
            loads = units.load(registers, words, (begin, begin + self.tiles[0].words), k % units.steps, thread)
            if not first:
                return loads
            return writing.seq(instructions.wait(ahead - 1), instructions.barrier(), loads, copy(stage + ahead))

        def step(at: Index) -> tirx.Stmt:
            parts = ((load(at, k + 1), units.multiply(registers, k)) for k in range(units.steps))
            return writing.seq(*(each for part in parts for each in part))

        copies = [copy(number(stage)) for stage in range(ahead)]
        return [*copies, load(number(0), 0), writing.loop("step", self.steps, step)]

    def _copy(self, words: tirx.Buffer, step: Index, place: Place, thread: Index) -> tirx.Stmt:
        """Begin to copy what a step multiplies."""
        at = Place(place.group, place.row, place.column, place.summed + step * self.plan.depth, place.end)
        begin = step % self.plan.stages * self.stage_words
        copies = []
        for operand, tile, number_ in zip(self.operands, self.tiles, (0, 1)):
            copier = Copier(self.product, operand, number_, tile, self.threads)
            copies.append(copier.copy(words, begin, at, thread))
            begin = begin + tile.words
        return writing.seq(*copies)

    def _write(self, words: tirx.Buffer, split: Index, first: tuple[Index, Index, Index], thread: Index) -> tirx.Stmt:
        tile = storing.SumTile(words, self.stride, self.plan.tile.rows, self.plan.tile.columns, first)
        if self.partial is None:
            return storing.write_tile(self.results, tile, thread, self.threads)
        return storing.write_partial(self.product, self.partial, split, tile, thread, self.threads)


def kernel(blocks: Sequence[Block]) -> tirx.Stmt:
    """One kernel for several products with the same plan: those of a data gradient's phases. The first ones, which have
    most to sum, begin first."""
    words = writing.memory("words", (max(each.words for each in blocks),), ACCUMULATOR, "shared.dyn")
    registers = blocks[0].units.registers()

    def body(block: Index, thread: Index) -> tirx.Stmt:
        begin = sum(each.count for each in blocks[:-1])
        statement = blocks[-1].body(words, registers, block - begin, thread)
        for each in reversed(blocks[:-1]):
            end, begin = begin, begin - each.count
            statement = tirx.IfThenElse(block < end, each.body(words, registers, block - begin, thread), statement)
        return writing.seq(writing.allocate(words, *registers), statement)

    return writing.kernel(sum(each.count for each in blocks), blocks[0].threads, body)
