"""A block's tile with small N on tensor cores: A goes from global memory straight to registers.

With few columns no two warps multiply the same element of A, and each element has few products. Copying A through
shared memory would take longer than all products. So each lane reads vectors of A itself, one step ahead; what several
taps read comes from L1. B's tile is in shared memory, copied ahead.

An `mma` fragment has four elements of K in each lane (tensor_cores.py), and a vector has eight. An instruction may
multiply any elements of K, if those of A and B are the same. So lane l reads the vector of elements 8 * (l % 4) to
8 * (l % 4) + 7; one instruction multiplies the first four of each lane, and the next one the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import (
    LANES,
    PART,
    REGISTER_STAGES,
    VECTOR,
    ColumnTile,
    RegisterTile,
)
from tvmconvgrad.schedules.cuda.gemm.mainloop import Pipeline, Registers
from tvmconvgrad.schedules.cuda.gemm.units.tensor_cores import COLUMNS, FRAGMENT, MATRIX, ROWS, store_fragments
from tvmconvgrad.schedules.cuda.hardware import WARP
from tvmconvgrad.schedules.cuda.ptx import instructions
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class TensorCoresFromRegisters:
    """The warps' shares of a tile, all columns of some rows each."""

    dtype: str
    a: RegisterTile
    b: ColumnTile
    warps: int

    @property
    def rows(self) -> int:
        """Rows of a warp, in instructions."""
        return self.a.positions // self.warps // ROWS

    @property
    def columns(self) -> int:
        """Columns, in instructions."""
        return self.b.positions // COLUMNS

    @property
    def parts(self) -> int:
        """The parts of a stage along K, of two instructions each."""
        return self.a.block_k // PART

    @property
    def _words(self) -> int:
        """Words of a stage's A in a lane."""
        return self.parts * self.rows * 2 * VECTOR

    def registers(self) -> Registers:
        """The registers: sums; A of a step and of the next one; a vector of B for each fragment of columns."""
        sizes = {
            "sums": self.rows * self.columns * FRAGMENT,
            "a_words": REGISTER_STAGES * self._words,
            "b_words": self.columns * VECTOR,
        }
        return tuple(writing.memory(name, (size,), "float32", "local") for name, size in sizes.items())

    def sum(
        self, words: tirx.Buffer, registers: Registers, pipeline: Pipeline, count: int, thread: Index
    ) -> list[tirx.Stmt]:
        """The copies of the first steps, and the loop over `count` steps, two at a time, since two steps alternate
        between registers. If `count` is odd, the last step multiplies zeros."""
        ahead = pipeline.stages - 1

        def step(at: Index, stage: int) -> tirx.Stmt:
            return writing.seq(
                pipeline.wait(at, ahead),
                pipeline.copy(at + ahead),
                self._load(registers, pipeline, at + 1, 1 - stage, thread),
                self._multiply(registers, words, pipeline.begins(at)[1], stage, thread),
            )

        copies = [pipeline.copy(writing.number(at)) for at in range(ahead)]
        first = self._load(registers, pipeline, writing.number(0), 0, thread)

        def both(pair: Index) -> tirx.Stmt:
            return writing.seq(*(step(pair * REGISTER_STAGES + stage, stage) for stage in range(REGISTER_STAGES)))

        return [*copies, first, writing.loop("step", -(-count // REGISTER_STAGES), both)]

    def _load(self, registers: Registers, pipeline: Pipeline, step: Index, stage: int, thread: Index) -> tirx.Stmt:
        """Begin to read A of a step. The words of both rows of a fragment alternate, as `mma` takes them."""
        row, lane = self._first(thread)

        def vector(at: Index) -> tirx.Stmt:
            part, i, half = at // (2 * self.rows), at // 2 % self.rows, at % 2
            position = row + i * ROWS + half * MATRIX + lane // LANES
            assert pipeline.vector is not None, "A is read where it lies"
            source, inside = pipeline.vector(step, position, part * PART + lane % LANES * (PART // LANES))
            begin = stage * self._words + at // 2 * (2 * VECTOR) + half
            to = writing.address(registers[1], VECTOR, begin)
            return instructions.load_vector(to, source, inside)

        return writing.unrolled("vector", self.parts * self.rows * 2, vector)

    def _multiply(self, registers: Registers, words: tirx.Buffer, begin: Index, stage: int, thread: Index) -> tirx.Stmt:
        """Add the products of a step, whose tile of B begins at a word."""
        sums, a_words, b_words = registers
        _, lane = self._first(thread)

        def load(part: int, j: Index) -> tirx.Stmt:
            place = self.b.word(j * COLUMNS + lane // LANES, part * PART + lane % LANES * (PART // LANES))

            def word(i: Index) -> tirx.Stmt:
                return writing.store(b_words, writing.load(words, begin + place + i), j * VECTOR + i)

            return writing.vectorized("word", VECTOR, word)

        def multiply(part: int, half: int, i: Index, j: Index) -> tirx.Stmt:
            to = writing.address(sums, FRAGMENT, (i * self.columns + j) * FRAGMENT)
            vectors = stage * self._words + (part * self.rows + i) * (2 * VECTOR)
            of_a = writing.address(a_words, FRAGMENT, vectors + half * FRAGMENT)
            of_b = writing.address(b_words, FRAGMENT // 2, j * VECTOR + half * (FRAGMENT // 2))
            return instructions.multiply(self.dtype, PART // 2, to, of_a, of_b)

        def products(part: int, half: int) -> tirx.Stmt:
            def row(i: Index) -> tirx.Stmt:
                return writing.unrolled("j", self.columns, lambda j: multiply(part, half, i, j))

            return writing.unrolled("i", self.rows, row)

        def all_of(part: int) -> tirx.Stmt:
            loads = writing.unrolled("j", self.columns, lambda j: load(part, j))
            return writing.seq(loads, products(part, 0), products(part, 1))

        return writing.seq(*map(all_of, range(self.parts)))

    def _first(self, thread: Index) -> tuple[Index, Index]:
        """The first row of a thread's warp, and its lane."""
        return thread // WARP * (self.rows * ROWS), thread % WARP

    def store_sums(self, registers: Registers, words: tirx.Buffer, stride: int, thread: Index) -> tirx.Stmt:
        """Store the sums to shared memory as rows that are `stride` words apart."""
        row, lane = self._first(thread)
        return store_fragments(
            registers[0], words, stride, (self.rows, self.columns), ROWS, (row, writing.number(0)), lane
        )
