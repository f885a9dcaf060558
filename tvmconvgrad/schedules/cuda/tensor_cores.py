"""A block's tile on tensor cores: products of f16, bf16 or TF32, summed in f32.

Each warp has a share of the tile and holds its sums in fragments of `mma`, of 16 x 8: lane l has row l // 4 (and the
one eight below) and columns 2 * (l % 4) and the next. An instruction multiplies 32 bytes of each row and column: 16
summed elements of 16 bits, `m16n8k16`, or 8 of TF32, `m16n8k8`. In words of 4 bytes both have the same fragments.
`ldmatrix` loads them from lines along summed elements, and from lines along positions where it can transpose, which it
does with 16 bits: words of TF32 are then read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import instructions, writing
from tvmconvgrad.schedules.cuda.operands import VECTOR_BYTES
from tvmconvgrad.schedules.cuda.shared import VECTOR, WORD, SharedTile
from tvmconvgrad.te.tensors import Index

ROWS, COLUMNS = 16, 8
MATRIX = 8
"""Rows of a matrix that `ldmatrix` loads, each of VECTOR_BYTES."""
FRAGMENT = 4
"""Words of a lane: of 16 rows of A, or of 16 columns of B."""
WARP = 32


@dataclass(frozen=True)
class Fragments:
    """One operand's part of a product, in the registers of a warp: for every 16 positions four matrices of 8 positions.

    `halves` has for each of the four in which half of the positions, and of the summed elements, it lies.
    """

    registers: tirx.Buffer
    tile: SharedTile
    begin: Index
    """The tile's first word."""
    first: Index
    """The warp's first position."""
    halves: Callable[[Index], tuple[Index, Index]]

    def address(self, number: Index) -> Index:
        """Where a lane has its words of the numbered fragment."""
        return writing.address(self.registers, FRAGMENT, number * FRAGMENT)

    def load(self, number: Index, words: tirx.Buffer, k: Index, lane: Index) -> tirx.Stmt:
        """Load the numbered fragment of the k-th summed elements."""
        if self.tile.by_position or self.tile.item < WORD:
            row, none = lane % MATRIX, writing.number(0)
            within = (row, none) if self.tile.by_position else (none, row)
            source = writing.address(words, VECTOR, self._word(number, k, lane // MATRIX, *within))
            return instructions.load_matrices(self.address(number), source, not self.tile.by_position)

        def each(matrix: Index) -> tirx.Stmt:
            value = writing.load(words, self._word(number, k, matrix, lane // 4, lane % 4))
            return writing.store(self.registers, value, number * FRAGMENT + matrix)

        return writing.unrolled("matrix", FRAGMENT, each)

    def _word(self, number: Index, k: Index, matrix: Index, position: Index, summed: Index) -> Index:
        half, half_summed = self.halves(matrix)
        lanes = VECTOR_BYTES // self.tile.item
        at = self.first + number * (2 * MATRIX) + half * MATRIX + position
        return self.begin + self.tile.word(at, (2 * k + half_summed) * lanes + summed)


def _of_a(matrix: Index) -> tuple[Index, Index]:
    return matrix % 2, matrix // 2


def _of_b(matrix: Index) -> tuple[Index, Index]:
    return matrix // 2, matrix % 2


@dataclass(frozen=True)
class TensorCores:
    """The warps' shares of a tile. Each has a multiple of 16 rows and of 16 columns."""

    dtype: str
    a: SharedTile
    b: SharedTile
    warps: tuple[int, int]
    """Warps along rows and along columns."""

    @property
    def rows(self) -> int:
        """Rows of a warp, in fragments."""
        return self.a.positions // self.warps[0] // ROWS

    @property
    def columns(self) -> int:
        """Columns of a warp, in fragments."""
        return self.b.positions // self.warps[1] // COLUMNS

    @property
    def depth(self) -> int:
        """Summed elements of an instruction."""
        return 2 * VECTOR_BYTES // self.a.item

    def registers(self) -> tuple[tirx.Buffer, ...]:
        """Sums, and fragments of A and B."""
        return (
            writing.memory("sums", (self.rows * self.columns * 4,), "float32", "local"),
            writing.memory("a_fragments", (self.rows * FRAGMENT,), "float32", "local"),
            writing.memory("b_fragments", (self.columns // 2 * FRAGMENT,), "float32", "local"),
        )

    def multiply(
        self, registers: tuple[tirx.Buffer, ...], words: tirx.Buffer, begins: tuple[Index, Index], thread: Index
    ) -> tirx.Stmt:
        """Add the products of a tile of A and one of B, which begin at these words."""
        sums = registers[0]
        row, column, lane = self._first(thread)
        a = Fragments(registers[1], self.a, begins[0], row, _of_a)
        b = Fragments(registers[2], self.b, begins[1], column, _of_b)

        def load(operand: Fragments, number: Index, k: Index) -> tirx.Stmt:
            rounded = instructions.round_to_tf32(operand.address(number)) if self.dtype == "tf32" else None
            return writing.seq(operand.load(number, words, k, lane), rounded)

        def multiply(i: Index, j: Index) -> tirx.Stmt:
            to = writing.address(sums, 4, (i * self.columns + j) * 4)
            of_b = writing.address(b.registers, FRAGMENT // 2, j * (FRAGMENT // 2))
            return instructions.multiply(self.dtype, self.depth, to, a.address(i), of_b)

        def step(k: Index) -> tirx.Stmt:
            return writing.seq(
                writing.unrolled("i", self.rows, lambda i: load(a, i, k)),
                writing.unrolled("j", self.columns // 2, lambda j: load(b, j, k)),
                writing.unrolled(
                    "i", self.rows, lambda i: writing.unrolled("j", self.columns, lambda j: multiply(i, j))
                ),
            )

        return writing.unrolled("k", self.a.depth // self.depth, step)

    def _first(self, thread: Index) -> tuple[Index, Index, Index]:
        """The first row and column of a thread's warp, and its lane."""
        warp, lane = thread // WARP, thread % WARP
        rows, columns = self.rows * ROWS, self.columns * COLUMNS
        return warp // self.warps[1] * rows, warp % self.warps[1] * columns, lane

    def spill(self, registers: tuple[tirx.Buffer, ...], words: tirx.Buffer, stride: int, thread: Index) -> tirx.Stmt:
        """Write the sums to shared memory as rows, so many words apart."""
        sums = registers[0]
        row, column, lane = self._first(thread)

        def fragment(i: Index, j: Index) -> tirx.Stmt:
            def element(e: Index) -> tirx.Stmt:
                at_row = row + i * ROWS + lane // 4 + e // 2 * 8
                at_column = column + j * COLUMNS + lane % 4 * 2 + e % 2
                value = writing.load(sums, (i * self.columns + j) * 4 + e)
                return writing.store(words, value, at_row * stride + at_column)

            return writing.unrolled("e", 4, element)

        return writing.unrolled("i", self.rows, lambda i: writing.unrolled("j", self.columns, lambda j: fragment(i, j)))
