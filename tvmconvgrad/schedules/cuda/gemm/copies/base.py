"""The ways to copy operands to shared memory."""

from __future__ import annotations

from enum import IntEnum
from math import prod


class Copies(IntEnum):
    """The ways to copy operands; a plan draws one by its number, so the numbers are part of tuning logs."""

    PAST_L1 = 0
    """All threads copy by `cp.async.cg`: from L2, past L1."""
    CACHED = 1
    """The same, but A by `cp.async.ca`: through L1 (gemm/shapes.py)."""
    TMA = 2
    """TMA copies whole tiles (tma_tiles.py)."""
    TMA_MULTICAST_B = 3
    """TMA; two blocks with neighbouring tiles along M are a cluster, and B's tiles are multicast to both."""
    TMA_MULTICAST_A = 4
    """TMA; two blocks with neighbouring tiles along N are a cluster, and A's tiles are multicast to both."""

    @property
    def by_tma(self) -> bool:
        """Whether TMA copies."""
        return self >= Copies.TMA

    @property
    def shared(self) -> tuple[bool, bool]:
        """Whether two blocks share A's tiles, and whether they share B's."""
        return self is Copies.TMA_MULTICAST_A, self is Copies.TMA_MULTICAST_B

    @property
    def pair(self) -> tuple[int, int]:
        """The blocks of a pair along M, and along N."""
        a, b = self.shared
        return 1 + b, 1 + a

    @property
    def blocks(self) -> int:
        """The number of blocks that share tiles."""
        return prod(self.pair)
