"""A block's tile on tensor cores by `mma`: products of f16, bf16 or TF32, with f32 sums.

Each warp has a share of the tile, and holds its sums in `mma` fragments of 16 x 8: lane l has rows l // 4 and
l // 4 + 8, and columns 2 * (l % 4) and 2 * (l % 4) + 1. An instruction multiplies 32 bytes of each row and column: 16
elements of K of 16 bits (`m16n8k16`), or 8 of TF32 (`m16n8k8`). In words of 4 bytes both have the same fragments.
`ldmatrix` loads fragments from lines along K. From lines along positions it loads 16-bit elements, which it can
transpose; TF32 words are then loaded one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import REGISTER_STAGES, VECTOR, PaddedTile
from tvmconvgrad.schedules.cuda.gemm.mainloop import RegisterMainloop, Registers
from tvmconvgrad.schedules.cuda.hardware import VECTOR_BYTES, WARP, WORD
from tvmconvgrad.schedules.cuda.ptx import instructions
from tvmconvgrad.te.tensors import Index

ROWS, COLUMNS = 16, 8
MATRIX = 8
"""Rows of a matrix that `ldmatrix` loads, each of VECTOR_BYTES."""
FRAGMENT = 4
"""Words of a lane: of 16 rows of A, or of 16 columns of B."""


@dataclass(frozen=True)
class Fragments:
    """One operand of an instruction in a warp's registers: for every 16 positions four matrices of 8 positions.

    `halves` says for each of the four in which half of the positions, and of K, it lies.
    """

    registers: tirx.Buffer
    begin: int
    """The register at which they begin."""
    count: int
    tile: PaddedTile
    halves: Callable[[Index], tuple[Index, Index]]

    def load(self, words: tirx.Buffer, begin: Index, position: Index, k: int, lane: Index) -> tirx.Stmt:
        """Load all fragments from `position` on, for the k-th instruction, from the tile that begins at word
        `begin`."""

        def word(number: Index, matrix: Index, row: Index, k_word: Index) -> Index:
            half, half_k = self.halves(matrix)
            at = position + number * (2 * MATRIX) + half * MATRIX + row
            return begin + self.tile.word(at, (2 * k + half_k) * (VECTOR_BYTES // self.tile.item) + k_word)

        def fragment(number: Index) -> tirx.Stmt:
            to = self.begin + number * FRAGMENT
            if self.tile.by_position or self.tile.item < WORD:
                row, none = lane % MATRIX, writing.number(0)
                within = (row, none) if self.tile.by_position else (none, row)
                source = writing.address(words, VECTOR, word(number, lane // MATRIX, *within))
                address = writing.address(self.registers, FRAGMENT, to)
                return instructions.load_matrices(address, source, not self.tile.by_position)

            def each(matrix: Index) -> tirx.Stmt:
                value = writing.load(words, word(number, matrix, lane // 4, lane % 4))
                return writing.store(self.registers, value, to + matrix)

            return writing.unrolled("matrix", FRAGMENT, each)

        return writing.unrolled("number", self.count, fragment)

    def round(self) -> tirx.Stmt:
        """Round all of them to TF32."""

        def fragment(number: Index) -> tirx.Stmt:
            return instructions.round_to_tf32(writing.address(self.registers, FRAGMENT, self.begin + number * FRAGMENT))

        return writing.unrolled("number", self.count, fragment)


@dataclass(frozen=True)
class TensorCores(RegisterMainloop):
    """The warps' shares of a tile. Each has a multiple of 16 rows and of 16 columns."""

    dtype: str
    a: PaddedTile
    b: PaddedTile
    warps: tuple[int, int]
    """Warps along rows and along columns."""

    @property
    def rows(self) -> int:
        """Rows of a warp, in instructions."""
        return self.a.positions // self.warps[0] // ROWS

    @property
    def columns(self) -> int:
        """Columns of a warp, in instructions."""
        return self.b.positions // self.warps[1] // COLUMNS

    @property
    def mma_k(self) -> int:
        """The elements of K of an instruction."""
        return 2 * VECTOR_BYTES // self.a.item

    @property
    def steps(self) -> int:
        """The number of instructions along K in a stage."""
        return self.a.block_k // self.mma_k

    @property
    def fragments(self) -> tuple[int, int]:
        """Of A and of B, each of 16 positions."""
        return self.rows, self.columns // 2

    def registers(self) -> Registers:
        """The registers: sums, and, double-buffered, fragments of A and B."""
        sizes = (REGISTER_STAGES * FRAGMENT * count for count in self.fragments)
        return (
            writing.memory("sums", (self.rows * self.columns * 4,), "float32", "local"),
            *(writing.memory(name, (size,), "float32", "local") for name, size in zip(("a_words", "b_words"), sizes)),
        )

    def load(
        self, registers: Registers, words: tirx.Buffer, begins: tuple[Index, Index], k: int, thread: Index
    ) -> tirx.Stmt:
        """Load what the k-th instructions of a stage multiply, whose tiles of A and B begin at these words."""
        row, column, lane = self._first(thread)
        a, b = self._fragments(registers, k)
        loads = a.load(words, begins[0], row, k, lane), b.load(words, begins[1], column, k, lane)
        return writing.seq(*loads, *((a.round(), b.round()) if self.dtype == "tf32" else ()))

    def multiply(self, registers: Registers, k: int) -> tirx.Stmt:
        """Add the products of the k-th instructions."""
        sums = registers[0]
        a, b = self._fragments(registers, k)

        def multiply(i: Index, j: Index) -> tirx.Stmt:
            to = writing.address(sums, 4, (i * self.columns + j) * 4)
            of_a = writing.address(a.registers, FRAGMENT, a.begin + i * FRAGMENT)
            of_b = writing.address(b.registers, FRAGMENT // 2, b.begin + j * (FRAGMENT // 2))
            return instructions.multiply(self.dtype, self.mma_k, to, of_a, of_b)

        return writing.unrolled("i", self.rows, lambda i: writing.unrolled("j", self.columns, lambda j: multiply(i, j)))

    def _fragments(self, registers: Registers, k: int) -> tuple[Fragments, Fragments]:
        """Those of A, and of B, that the k-th instructions multiply."""
        (rows, columns), (_, a_words, b_words) = self.fragments, registers
        stage = k % REGISTER_STAGES * FRAGMENT
        return (
            Fragments(a_words, stage * rows, rows, self.a, lambda matrix: (matrix % 2, matrix // 2)),
            Fragments(b_words, stage * columns, columns, self.b, lambda matrix: (matrix // 2, matrix % 2)),
        )

    def _first(self, thread: Index) -> tuple[Index, Index, Index]:
        """The first row and column of a thread's warp, and its lane."""
        warp, lane = thread // WARP, thread % WARP
        rows, columns = self.rows * ROWS, self.columns * COLUMNS
        return warp // self.warps[1] * rows, warp % self.warps[1] * columns, lane

    def store_sums(self, registers: Registers, words: tirx.Buffer, stride: int, thread: Index) -> tirx.Stmt:
        """Store the sums to shared memory as rows that are `stride` words apart."""
        row, column, lane = self._first(thread)
        return store_fragments(registers[0], words, stride, (self.rows, self.columns), ROWS, (row, column), lane)


def store_fragments(
    sums: tirx.Buffer,
    words: tirx.Buffer,
    stride: int,
    shape: tuple[int, int],
    apart: int,
    first: tuple[Index, Index],
    lane: Index,
) -> tirx.Stmt:
    """Store a warp's fragments of sums to shared memory, converted to its type, as rows `stride` elements apart. There
    are `shape` fragments along rows and columns, from the row and column `first` on; those along rows are `apart` rows
    from each other."""
    row, column = first

    def fragment(i: Index, j: Index) -> tirx.Stmt:
        def element(e: Index) -> tirx.Stmt:
            at_row = row + i * apart + lane // 4 + e // 2 * 8
            at_column = column + j * COLUMNS + lane % 4 * 2 + e % 2
            value = writing.load(sums, (i * shape[1] + j) * 4 + e)
            return writing.store(words, value.astype(str(words.dtype)), at_row * stride + at_column)

        return writing.unrolled("e", 4, element)

    return writing.unrolled("i", shape[0], lambda i: writing.unrolled("j", shape[1], lambda j: fragment(i, j)))
