"""Thread block clusters (sm_90 and later): which blocks share operand tiles, and which have splits of the same tile."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import Index

MOST = 8
"""The largest number of blocks in a cluster that every GPU with clusters supports."""


@dataclass(frozen=True)
class Cluster:
    """The cluster of a block: `split_k` splits of K, which it adds up (in-cluster split-K), times `pair` blocks."""

    split_k: int
    pair: int
    """The number of blocks that share operand tiles: 1 or 2."""
    rank: Index
    """The block's number within the cluster; the blocks of a pair follow each other."""

    @property
    def size(self) -> int:
        """The number of blocks."""
        return self.split_k * self.pair

    @property
    def place(self) -> Index:
        """The block's number within its pair."""
        return self.rank % self.pair

    @property
    def split(self) -> Index:
        """The number of the block's split of K."""
        return self.rank // self.pair

    @property
    def partners(self) -> list[Index]:
        """The ranks of the pair's blocks, including this one."""
        return [self.split * self.pair + number(i) for i in range(self.pair)]

    def of_split(self, split: int) -> Index:
        """The rank of the block that has another split of the same tile."""
        return self.place + number(split * self.pair)
