"""A block's tile on f32 FMA units: each thread holds the sums of some rows and columns in registers.

If an operand's lines lie along rows (or columns), a thread has these in groups of four, so that it reads float4.
Otherwise its rows are apart by the number of threads, and a float4 has four elements of K. Either way the threads of a
warp read different banks, or the same word.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import REGISTER_STAGES, PaddedTile
from tvmconvgrad.schedules.cuda.gemm.mainloop import RegisterMainloop, Registers
from tvmconvgrad.te.tensors import Index

FOUR = 4


@dataclass(frozen=True)
class Side:
    """How A's rows, or B's columns, are distributed over the threads."""

    tile: PaddedTile
    threads: int

    @property
    def count(self) -> int:
        """The number of a thread's positions (rows or columns)."""
        return self.tile.positions // self.threads

    def position(self, thread: Index, i: Index) -> Index:
        """The i-th position of a thread."""
        if self.tile.by_position:
            return thread + i * self.threads
        return (i // FOUR * self.threads + thread) * FOUR + i % FOUR

    def load(
        self, registers: tirx.Buffer, to: int, words: tirx.Buffer, begin: Index, thread: Index, k: Index
    ) -> tirx.Stmt:
        """Load a thread's positions at four elements of K to registers[to + k, i], by float4."""

        def vector(step: Index) -> tirx.Stmt:
            if self.tile.by_position:
                at, word = (0, step), self.tile.word(self.position(thread, step), k)
            else:
                blocks = self.count // FOUR
                i = step % blocks * FOUR
                at, word = (step // blocks, i), self.tile.word(self.position(thread, i), k + step // blocks)
            read = writing.memory("four", (FOUR,), "float32", "local")

            def lane(e: Index) -> tirx.Stmt:
                return writing.store(read, writing.load(words, begin + word + e), e)

            def keep(e: Index) -> tirx.Stmt:
                row, i = (e, at[1]) if self.tile.by_position else (at[0], at[1] + e)
                return writing.store(registers, writing.load(read, e), (to + row) * self.count + i)

            return writing.seq(
                writing.allocate(read), writing.vectorized("e", FOUR, lane), writing.unrolled("e", FOUR, keep)
            )

        return writing.unrolled("step", self.count, vector)


@dataclass(frozen=True)
class FmaUnits(RegisterMainloop):
    """The threads' shares of a tile."""

    a: PaddedTile
    b: PaddedTile
    threads: tuple[int, int]
    """Threads along rows and along columns."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """The sides of A and of B."""
        return Side(self.a, self.threads[0]), Side(self.b, self.threads[1])

    def registers(self) -> Registers:
        """The registers: sums, and, double-buffered, four elements of K of A and B."""
        rows, columns = (side.count for side in self.sides)
        sizes = {
            "sums": rows * columns,
            "a_elements": REGISTER_STAGES * FOUR * rows,
            "b_elements": REGISTER_STAGES * FOUR * columns,
        }
        return tuple(writing.memory(name, (size,), "float32", "local") for name, size in sizes.items())

    @property
    def steps(self) -> int:
        """The number of groups of four elements of K in a stage."""
        return self.a.block_k // FOUR

    def load(
        self, registers: Registers, words: tirx.Buffer, begins: tuple[Index, Index], k: int, thread: Index
    ) -> tirx.Stmt:
        """Load the k-th four elements of a stage, whose tiles of A and B begin at these words."""
        own = thread // self.threads[1], thread % self.threads[1]
        to, four = k % REGISTER_STAGES * FOUR, writing.number(k * FOUR)
        operands = zip(self.sides, registers[1:], begins, own)
        return writing.seq(*(side.load(buffer, to, words, begin, mine, four) for side, buffer, begin, mine in operands))

    def multiply(self, registers: Registers, k: int) -> tirx.Stmt:
        """Add the products of the k-th four elements."""
        sums, a, b = registers
        rows, columns = (side.count for side in self.sides)
        begin = k % REGISTER_STAGES * FOUR

        def product(e: Index, i: Index, j: Index) -> tirx.Stmt:
            at = i * columns + j
            term = writing.load(a, (begin + e) * rows + i) * writing.load(b, (begin + e) * columns + j)
            return writing.store(sums, writing.load(sums, at) + term, at)

        return writing.unrolled(
            "e",
            FOUR,
            lambda e: writing.unrolled("i", rows, lambda i: writing.unrolled("j", columns, lambda j: product(e, i, j))),
        )

    def store_sums(self, registers: Registers, words: tirx.Buffer, stride: int, thread: Index) -> tirx.Stmt:
        """Store the sums to shared memory as rows that are `stride` words apart."""
        sums = registers[0]
        rows, columns = self.sides
        own = thread // self.threads[1], thread % self.threads[1]

        def element(i: Index, j: Index) -> tirx.Stmt:
            word = rows.position(own[0], i) * stride + columns.position(own[1], j)
            return writing.store(words, writing.load(sums, i * columns.count + j), word)

        return writing.unrolled(
            "i", rows.count, lambda i: writing.unrolled("j", columns.count, lambda j: element(i, j))
        )
