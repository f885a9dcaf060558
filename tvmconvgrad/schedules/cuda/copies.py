"""How operands come to shared memory."""

from __future__ import annotations

from enum import IntEnum


class Copies(IntEnum):
    """The ways of copies, of which a plan draws one by its number."""

    PAST_L1 = 0
    """By all threads, from the L2 cache."""
    CACHED = 1
    """A by way of the L1 cache (gemm_sizes.py)."""
    BOXES = 2
    """By the engine, as boxes (boxes.py)."""
    B_FOR_TWO = 3
    """Boxes; two blocks whose rows are neighbours are a cluster, and share B's tiles."""
    A_FOR_TWO = 4
    """Boxes; two blocks whose columns are neighbours share A's."""

    @property
    def by_engine(self) -> bool:
        """Whether the engine copies."""
        return self >= Copies.BOXES

    @property
    def shared(self) -> int | None:
        """Which operand two blocks share, if any: A is 0, B is 1."""
        return {Copies.A_FOR_TWO: 0, Copies.B_FOR_TWO: 1}.get(self)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return 1 if self.shared is None else 2
