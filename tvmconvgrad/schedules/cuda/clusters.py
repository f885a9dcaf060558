"""The blocks of a cluster, and what they do together: sm_90 and later."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import Index

MOST = 8
"""Blocks that every GPU with clusters takes."""


@dataclass(frozen=True)
class Cluster:
    """A block's cluster: pairs of blocks that share tiles, or as many splits of a sum, which they add up."""

    split_k: int
    pair: int
    """How many blocks share tiles: 1 or 2."""
    rank: Index
    """The block's number within the cluster; those of a pair follow each other."""

    @property
    def size(self) -> int:
        """How many blocks there are."""
        return self.split_k * self.pair

    @property
    def place(self) -> Index:
        """The block's place in its pair."""
        return self.rank % self.pair

    @property
    def split(self) -> Index:
        """Which of the splits the block has."""
        return self.rank // self.pair

    @property
    def partners(self) -> list[Index]:
        """The blocks of the pair, this one among them."""
        return [self.split * self.pair + number(i) for i in range(self.pair)]

    def of_split(self, split: int) -> Index:
        """The block of the same tile that has another split."""
        return self.place + number(split * self.pair)
