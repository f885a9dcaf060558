"""Tiles of operands in shared memory, and their copies by `cp.async`.

Positions are rows of A or columns of B. Everything in shared memory is counted in words of 4 bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.operands import Operand
from tvmconvgrad.schedules.cuda.hardware import LINE_BYTES, VECTOR_BYTES, WORD
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.ptx import instructions
from tvmconvgrad.te.tensors import Index

VECTOR = VECTOR_BYTES // WORD
"""Words of a vector."""
REGISTER_STAGES = 2
"""The parts of a stage that registers hold (double buffering): one is multiplied while the next one is loaded."""

LANES = 4
"""The lanes of a warp that share a row of A, or a column of B, in an `mma` fragment."""
PART = LANES * VECTOR_BYTES // 2
"""The 16-bit elements of K in these lanes' vectors, which two instructions multiply."""


@dataclass(frozen=True)
class SharedTile(ABC):
    """A tile of `positions` x `block_k` elements of `item` bytes.

    Its lines lie along the axis of the operand's vectors: along K, a line `by_position`; or along positions, a line for
    each element of K.
    """

    positions: int
    block_k: int
    item: int
    by_position: bool

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.positions if self.by_position else self.block_k

    @property
    def vectors(self) -> int:
        """Vectors of a line."""
        return (self.block_k if self.by_position else self.positions) * self.item // VECTOR_BYTES

    @property
    @abstractmethod
    def words(self) -> int:
        """The words of the tile."""

    @abstractmethod
    def word(self, position: Index, k: Index) -> Index:
        """The word at which the vector from an element on begins."""


@dataclass(frozen=True)
class PaddedTile(SharedTile):
    """A tile that threads load to registers.

    Lines are padded by 16 bytes, so that the eight lines that `ldmatrix`, or a warp by float4, reads together lie in
    different banks. Lines of 4-byte elements along positions are padded by 32 bytes, since a warp reads eight positions
    of each of four lines (units/tensor_cores.py).
    """

    @property
    def stride(self) -> int:
        """Words from one line to the next."""
        return (self.vectors + (2 if self.item == WORD and not self.by_position else 1)) * VECTOR

    @property
    def words(self) -> int:
        """All of the tile."""
        return self.lines * self.stride

    def word(self, position: Index, k: Index) -> Index:
        """The word at which an element begins, or a pair of 16-bit elements."""
        line, along = (position, k) if self.by_position else (k, position)
        return line * self.stride + (along // 2 if self.item == 2 else along)


@dataclass(frozen=True)
class RegisterTile(SharedTile):
    """A tile that is not in shared memory: each lane reads it from global memory to registers."""

    @property
    def words(self) -> int:
        """0."""
        return 0

    def word(self, position: Index, k: Index) -> Index:
        """It has no place in shared memory."""
        raise NotImplementedError


@dataclass(frozen=True)
class ColumnTile(SharedTile):
    """B's tile with a line along K for each column, cut into parts so that a quarter warp's reads fill all banks."""

    @property
    def words(self) -> int:
        """All of the tile."""
        return self.lines * self.vectors * VECTOR

    def word(self, position: Index, k: Index) -> Index:
        """The word at which a vector begins. The first parts of all lines come first, then their second parts."""
        part, within = k // PART, k % PART
        return (part * self.lines + position) * (LANES * VECTOR) + within // (PART // LANES) * VECTOR


@dataclass(frozen=True)
class Copier:
    """Copies the tiles of one operand: each thread copies vectors, and neighbouring threads neighbouring ones."""

    product: Product
    operand: Operand
    number: int
    tile: SharedTile
    threads: int
    cached: bool

    def copy(self, words: tirx.Buffer, begin: Index, place: TileOrigin, thread: Index) -> tirx.Stmt:
        """Begin to copy the tile at `place` to shared memory, from word `begin` on."""
        tile, total = self.tile, self.tile.lines * self.tile.vectors
        lanes, steps = VECTOR_BYTES // tile.item, -(-total // self.threads)

        def vector(i: Index) -> tirx.Stmt:
            flat = i * self.threads + thread
            line, at = self._line_of(flat)
            position, k = (line, at * lanes) if tile.by_position else (at * lanes, line)
            source, inside = self.source(place, position, k)
            to = writing.address(words, VECTOR, begin + tile.word(position, k))
            return instructions.copy(to, source, inside, writing.below(flat, total, steps * self.threads), self.cached)

        return writing.unrolled("vector", steps, vector)

    def _line_of(self, flat: Index) -> tuple[Index, Index]:
        """(line, vector of the line) of copy number `flat`. Copies go by runs of a cache line: first the first run of
        every line, then the second. So a thread has few lines, and computes few addresses."""
        run = min(self.tile.vectors, LINE_BYTES // VECTOR_BYTES)
        number, within = flat // run, flat % run
        return number % self.tile.lines, number // self.tile.lines * run + within

    def source(self, place: TileOrigin, position: Index, k: Index) -> tuple[Index, Index]:
        """The address of a vector of the tile, and whether it is data, not zero; beyond the end of the block's K all
        are zero, and none is read."""
        product = self.product
        first, count = (place.row, product.m) if self.number == 0 else (place.column, product.n)
        at, of_k = first + position, place.k + k
        row, column = (at, place.column) if self.number == 0 else (place.row, at)
        source, inside = self.operand.vector(product.operand_index(self.number, place.group, row, column, of_k))
        return source, writing.every(inside, at < count, of_k < place.end)


@dataclass(frozen=True)
class TileOrigin:
    """Where a block's tiles begin in M, N and K, and where its range of K ends."""

    group: Index
    row: Index
    column: Index
    k: Index
    end: Index
