"""Tiles in shared memory as `wgmma` reads them: lines of up to 128 bytes, whose vectors are swizzled.

A line lies along the axis of the operand's vectors: along K for each position, or along positions for each element of
K. What exceeds 128 bytes continues in a further part of the tile, behind all lines of the part before.

128 bytes span all banks of shared memory. So vectors of different lines at the same place, which are read together,
would lie in the same banks. Therefore a vector's place within its line is its number xor the number of the 128 bytes
that the line lies in (PTX manual, "Asynchronous Warpgroup Level Matrix Shared Memory Layout").
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import VECTOR, SharedTile
from tvmconvgrad.schedules.cuda.hardware import VECTOR_BYTES, WORD
from tvmconvgrad.schedules.cuda.ptx.wgmma import Matrix
from tvmconvgrad.schedules.cuda.writing import INDEX, number
from tvmconvgrad.te.tensors import Index

SWIZZLE_BYTES = 128
"""The most bytes of a line, within which its vectors are swizzled; a narrower tile has lines of 64 or 32."""
MATRIX_LINES = 8
"""Lines after which the pattern of swizzling repeats."""
ALIGNMENT = MATRIX_LINES * SWIZZLE_BYTES
"""Alignment of a tile in bytes: swizzling goes by addresses, not by where a tile begins."""
MODES = {128: 1, 64: 2, 32: 3}
"""The instruction's swizzle mode for lines of so many bytes."""


@dataclass(frozen=True)
class SwizzledTile(SharedTile):
    """A tile that tensor cores read from shared memory. `lines` and `vectors` count over all parts of a line."""

    @property
    def line_bytes(self) -> int:
        """The bytes of one line within a part."""
        return min(SWIZZLE_BYTES, self.vectors * VECTOR_BYTES)

    @property
    def words(self) -> int:
        """All of the tile."""
        return self.positions * self.block_k * self.item // WORD

    def word(self, position: Index, k: Index) -> Index:
        """The word at which the vector from an element on lies."""
        line, vector = self._line(position, k)
        in_line = number(self.line_bytes // VECTOR_BYTES)
        across = tirx.floordiv(line, number(SWIZZLE_BYTES // self.line_bytes))
        place = tirx.bitwise_xor(*(tirx.floormod(each, in_line).astype("int32") for each in (vector, across)))
        return self._begin(line, vector) + tirx.floormod(place, int(in_line)).astype(INDEX) * VECTOR

    def matrix(self, words: tirx.Buffer, begin: Index, position: Index, k: Index) -> Matrix:
        """The descriptor of the matrix from an element on, in a tile that begins at word `begin`. Its address is that
        of its first vector without swizzling. Lines along K have no further parts."""
        line, vector = self._line(position, k)
        in_line = tirx.floormod(vector, number(self.line_bytes // VECTOR_BYTES))
        first = writing.address(words, VECTOR, begin + self._begin(line, vector) + in_line * VECTOR)
        parts = VECTOR_BYTES if self.by_position else self.lines * self.line_bytes
        return Matrix(first, parts, MATRIX_LINES * self.line_bytes, MODES[self.line_bytes], not self.by_position)

    def _line(self, position: Index, k: Index) -> tuple[Index, Index]:
        line, along = (position, k) if self.by_position else (k, position)
        return number(line), tirx.floordiv(number(along), number(VECTOR_BYTES // self.item))

    def _begin(self, line: Index, vector: Index) -> Index:
        part = tirx.floordiv(vector, number(self.line_bytes // VECTOR_BYTES))
        return (part * self.lines + line) * (self.line_bytes // WORD)
