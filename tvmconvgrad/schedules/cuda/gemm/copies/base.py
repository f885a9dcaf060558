"""How operands come to shared memory."""

from __future__ import annotations

from enum import IntEnum
from math import prod


class Copies(IntEnum):
    """The ways of copies, of which a plan draws one by its number."""

    PAST_L1 = 0
    """By all threads, from the L2 cache."""
    CACHED = 1
    """A by way of the L1 cache (gemm/sizes.py)."""
    BOXES = 2
    """By TMA, as boxes (tma_tiles.py)."""
    B_FOR_TWO = 3
    """Boxes; two blocks whose rows are neighbours are a cluster, and share B's tiles."""
    A_FOR_TWO = 4
    """Boxes; two blocks whose columns are neighbours share A's."""

    @property
    def by_engine(self) -> bool:
        """Whether TMA copies."""
        return self >= Copies.BOXES

    @property
    def shared(self) -> tuple[bool, bool]:
        """Whether two blocks share A's tiles, or B's."""
        return self is Copies.A_FOR_TWO, self is Copies.B_FOR_TWO

    @property
    def pair(self) -> tuple[int, int]:
        """How many blocks with neighbouring rows share tiles, and how many with neighbouring columns."""
        a, b = self.shared
        return 1 + b, 1 + a

    @property
    def blocks(self) -> int:
        """How many blocks share tiles."""
        return prod(self.pair)
