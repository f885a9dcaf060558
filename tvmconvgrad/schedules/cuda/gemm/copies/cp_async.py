"""Tiles of operands in shared memory: copied ahead by `cp.async`, a stage for each tile that is under way.

Everything is counted in words of 4 bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.operands import VECTOR_BYTES, Operand
from tvmconvgrad.schedules.cuda.gemm.product import Product
from tvmconvgrad.schedules.cuda.gemm.sizes import LINE_BYTES
from tvmconvgrad.schedules.cuda.ptx import base
from tvmconvgrad.te.tensors import Index

WORD = 4
VECTOR = VECTOR_BYTES // WORD
TURNS = 2
"""How many parts of a stage registers hold: one is multiplied, and the next one loaded meanwhile."""

LANES = 4
"""Lanes that share a row of A, or a column of B."""
PART = LANES * VECTOR_BYTES // 2
"""Summed elements of 16 bits of these lanes' vectors: two instructions multiply them."""


@dataclass(frozen=True)
class SharedTile(ABC):
    """`positions` rows of A, or columns of B, by `depth` summed elements of `item` bytes.

    Lines lie along what the operand's vectors lie along: a line for each position, or for each summed element.
    """

    positions: int
    block_k: int
    item: int
    by_position: bool

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self.positions if self.by_position else self.block_k

    @property
    def vectors(self) -> int:
        """Vectors of a line."""
        return (self.block_k if self.by_position else self.positions) * self.item // VECTOR_BYTES

    @property
    @abstractmethod
    def words(self) -> int:
        """All of the tile."""

    @abstractmethod
    def word(self, position: Index, k: Index) -> Index:
        """Where the vector begins that begins with an element."""


@dataclass(frozen=True)
class PaddedTile(SharedTile):
    """A tile that threads load to registers.

    Lines are padded by 16 bytes: the eight lines of a matrix that `ldmatrix` reads, or that a warp reads as float4,
    then lie in different banks; lines along positions of 4 bytes by 32, since a warp reads eight positions of each of
    four (units/tensor_cores.py).
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
        """Where an element begins, or, of 16 bits, the pair that it is the first of."""
        line, along = (position, k) if self.by_position else (k, position)
        return line * self.stride + (along // 2 if self.item == 2 else along)


@dataclass(frozen=True)
class UnsharedTile(SharedTile):
    """A tile that is not in shared memory: each lane reads it where it lies."""

    @property
    def words(self) -> int:
        """None."""
        return 0

    def word(self, position: Index, k: Index) -> Index:
        """It has no place."""
        raise NotImplementedError


@dataclass(frozen=True)
class ColumnTile(SharedTile):
    """B's tile: a line of summed elements for each column. The lines of a warp's quarter fill all banks, unpadded."""

    @property
    def words(self) -> int:
        """All of the tile."""
        return self.lines * self.vectors * VECTOR

    def word(self, position: Index, k: Index) -> Index:
        """Where a vector begins. Parts of a line lie apart, each behind that of the line before."""
        part, within = k // PART, k % PART
        return (part * self.lines + position) * (LANES * VECTOR) + within // (PART // LANES) * VECTOR


@dataclass(frozen=True)
class Copier:
    """Copies one operand's tiles: all threads together, a vector each, neighbours along memory."""

    product: Product
    operand: Operand
    number: int
    tile: SharedTile
    threads: int
    cached: bool

    def copy(self, words: tirx.Buffer, begin: Index, place: OutputMap, thread: Index) -> tirx.Stmt:
        """Begin to copy the tile of a place to the shared `words` from `begin` on."""
        tile, total = self.tile, self.tile.lines * self.tile.vectors
        lanes, steps = VECTOR_BYTES // tile.item, -(-total // self.threads)

        def vector(i: Index) -> tirx.Stmt:
            flat = i * self.threads + thread
            line, at = self._turn(flat)
            position, k = (line, at * lanes) if tile.by_position else (at * lanes, line)
            source, inside = self.source(place, position, k)
            to = writing.address(words, VECTOR, begin + tile.word(position, k))
            return base.copy(to, source, inside, writing.below(flat, total, steps * self.threads), self.cached)

        return writing.unrolled("vector", steps, vector)

    def _turn(self, flat: Index) -> tuple[Index, Index]:
        """The line, and the vector of it, whose turn it is: in runs of a line of the caches, the first of each line's
        before the second ones. So a thread has few lines, and computes the addresses of few."""
        run = min(self.tile.vectors, LINE_BYTES // VECTOR_BYTES)
        number, within = flat // run, flat % run
        return number % self.tile.lines, number // self.tile.lines * run + within

    def source(self, place: OutputMap, position: Index, k: Index) -> tuple[Index, Index]:
        """The address of a vector of the tile, and whether it is not zero: beyond the end of the block's sum all are,
        and none is read."""
        product = self.product
        first, count = (place.row, product.m) if self.number == 0 else (place.column, product.n)
        at, summed = first + position, place.summed + k
        row, column = (at, place.column) if self.number == 0 else (place.row, at)
        source, inside = self.operand.vector(product.looked_up(self.number, place.group, row, column, summed))
        return source, writing.every(inside, at < count, summed < place.end)


@dataclass(frozen=True)
class OutputMap:
    """Where tiles begin, and where the sum of their block ends."""

    group: Index
    row: Index
    column: Index
    summed: Index
    end: Index
