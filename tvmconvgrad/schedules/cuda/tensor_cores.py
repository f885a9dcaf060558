"""A block's tile on tensor cores: f16 or bf16 products, summed in f32.

Each warp has a share of the tile and holds its sums in fragments of `mma.m16n8k16`: lane l has row l // 4 (and the one
eight below) and columns 2 * (l % 4) and the next of each 16 x 8 sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import instructions, writing
from tvmconvgrad.schedules.cuda.shared import SharedTile
from tvmconvgrad.te.tensors import Index

ROWS, COLUMNS, DEPTH = 16, 8, 16
WARP = 32


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

    def registers(self) -> tuple[tirx.Buffer, ...]:
        """Sums, and fragments of A and B."""
        return (
            writing.memory("sums", (self.rows * self.columns * 4,), "float32", "local"),
            writing.memory("a_fragments", (self.rows * 4,), "uint32", "local"),
            writing.memory("b_fragments", (self.columns * 2,), "uint32", "local"),
        )

    def multiply(
        self, registers: tuple[tirx.Buffer, ...], words: tirx.Buffer, begins: tuple[Index, Index], thread: Index
    ) -> tirx.Stmt:
        """Add the products of a tile of A and one of B, which begin at these words."""
        sums, a, b = registers
        row, column, lane = self._first(thread)

        def step(k: Index) -> tirx.Stmt:
            load_a = writing.unrolled("i", self.rows, lambda i: self._load_a(a, words, begins[0], row, lane, i, k))
            pairs = self.columns // 2
            load_b = writing.unrolled("j", pairs, lambda j: self._load_b(b, words, begins[1], column, lane, j, k))

            def multiply(i: Index, j: Index) -> tirx.Stmt:
                to = writing.address(sums, 4, (i * self.columns + j) * 4)
                operands = writing.address(a, 4, i * 4), writing.address(b, 2, j * 2)
                return instructions.multiply(self.dtype, to, *operands)

            products = writing.unrolled(
                "i", self.rows, lambda i: writing.unrolled("j", self.columns, lambda j: multiply(i, j))
            )
            return writing.seq(load_a, load_b, products)

        return writing.unrolled("k", self.a.depth // DEPTH, step)

    def _first(self, thread: Index) -> tuple[Index, Index, Index]:
        """The first row and column of a thread's warp, and its lane."""
        warp, lane = thread // WARP, thread % WARP
        rows, columns = self.rows * ROWS, self.columns * COLUMNS
        return warp // self.warps[1] * rows, warp % self.warps[1] * columns, lane

    def _load_a(
        self, a: tirx.Buffer, words: tirx.Buffer, begin: Index, row: Index, lane: Index, i: Index, k: Index
    ) -> tirx.Stmt:
        """The matrices (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)."""
        if self.a.by_position:
            position, at = lane % 16, lane // 16 * 8
        else:
            position, at = lane // 8 % 2 * 8, lane % 8 + lane // 16 * 8
        word = begin + self.a.word(row + i * ROWS + position, k * DEPTH + at)
        return instructions.load_matrices(
            writing.address(a, 4, i * 4), writing.address(words, 4, word), not self.a.by_position
        )

    def _load_b(
        self, b: tirx.Buffer, words: tirx.Buffer, begin: Index, column: Index, lane: Index, j: Index, k: Index
    ) -> tirx.Stmt:
        """Two fragments: the matrices (columns 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15)."""
        if self.b.by_position:
            position, at = lane % 8 + lane // 16 * 8, lane // 8 % 2 * 8
        else:
            position, at = lane // 16 * 8, lane % 16
        word = begin + self.b.word(column + j * (2 * COLUMNS) + position, k * DEPTH + at)
        return instructions.load_matrices(
            writing.address(b, 4, j * 4), writing.address(words, 4, word), not self.b.by_position
        )

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
