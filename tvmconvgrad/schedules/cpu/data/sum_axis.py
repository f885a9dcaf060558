"""One axis of a sum of a data gradient or a forward: what each position reads at each tap, and which products with
padding are left out.

A tap at which a tile reads nothing but padding is left out as a whole. Other padding may be left out position by
position: then the program has a copy of the tile's products for each tap, and for a row's first, last and other tiles,
each without those positions that read padding (transforms/padding_elision.py). Of 3 taps in rows of 7 and of 14
positions, these are 2 of 21 products, and 2 of 42.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

MOST_TILES = 3
"""The tiles of a row of which the program has a copy: the first, the last, and one for those between. Where several of
these meet padding, a row must have no more: each would take a copy of its own."""

MOST_COPIES = 24
"""Padding is left out by position if that takes at most so many copies of a tile's products, for all sums together:
each takes 10 to 20 ms to compile (an Intel Xeon with AMX). A forward of 7x7 taps has 21, a data gradient of 4x4 taps
with strides of 2 has 24, one of 7x7 taps 42."""

LEAST_LEFT_OUT = 0.02
"""The least share of the products for which padding is left out by position; below it, in rows of 56 and more, copies
cost more time to compile than calls gain, which was judged, not measured. 28 forwards and 36 data gradients above it
became 1.03 and 1.05 times as fast in the mean, from 0.95 to 1.28; ResNet-50's res4a_branch2b and res5a_branch2b (data;
0.048 and 0.095 are padding) 1.05 and 1.12 times in f16, 1.05 and 1.1 in bf16 pairs, and res5a_branch2b 1.13 with AVX2
(an Intel Xeon with AMX)."""


@dataclass(frozen=True)
class SumAxis:
    """One axis of a sum: at tap j, position i reads element `begin + i * stride + j * step` of `size` elements."""

    positions: int
    taps: int
    begin: int
    stride: int
    step: int
    size: int

    def computed(self, extent: int) -> int:
        """Pairs of position and tap that are computed in tiles of `extent` positions. Taps at which a tile reads
        nothing but padding are left out."""
        return _computed(self, extent)

    def computed_by_position(self, extent: int) -> int:
        """The same where all padding is left out, position by position, which `copies` allows."""
        return self._counted(extent, lambda begin, tap: self._reading(begin, begin + extent, tap))

    def charged_by_position(self, extent: int, least: int) -> int:
        """How many pairs take as long, if none is left out: fewer than `least` positions as long as those, and a row's
        surplus positions as long as others. If these cost nothing, stems are computed in tiles that do not divide their
        rows, and take up to twice as long (an Intel Xeon with AMX)."""

        def charged(begin: int, tap: int) -> int:
            behind = min(begin + extent, self.positions)
            if not self._reading(begin, begin + extent, tap):
                return 0
            return max(self._reading(begin, behind, tap) + begin + extent - behind, least)

        return self._counted(extent, charged)

    def copies(self, extent: int) -> int | None:
        """How many copies of a tile's products leave out all padding: one for each tap of the first tile, of the last
        one, and of those between. None where those between meet padding in several tiles."""
        tiles = -(-self.positions // extent)
        ends = [self.begin, self.begin + (self.taps - 1) * self.step]
        first, last = min(ends) + extent * self.stride, max(ends) + ((tiles - 1) * extent - 1) * self.stride
        fits = tiles <= MOST_TILES or (first >= 0 and last < self.size)
        return self.taps * min(tiles, MOST_TILES) if fits else None

    def _counted(self, extent: int, count: Callable[[int, int], int]) -> int:
        """The sum of `count` over where tiles begin, and taps. Tiles between a row's first and last one read data at
        all taps, if there are many."""
        tiles = -(-self.positions // extent)
        ends = range(tiles) if tiles <= MOST_TILES else (0, tiles - 1)
        others = (tiles - len(ends)) * extent * self.taps
        return others + sum(count(tile * extent, tap) for tile in ends for tap in range(self.taps))

    def _reading(self, begin: int, behind: int, tap: int) -> int:
        """How many of the positions from `begin` to `behind` read data at a tap."""
        at = self.begin + tap * self.step
        first = max(-(at // self.stride), begin)
        return max(min((self.size - 1 - at) // self.stride + 1, behind) - first, 0)


@lru_cache(maxsize=256)  # filters may have many taps, and many tiles as many positions
def _computed(axis: SumAxis, extent: int) -> int:
    """Pairs of position and tap for which a tile of `extent` positions reads data at the tap."""
    tiles, tile_stride = -(-axis.positions // extent), extent * axis.stride
    count = 0
    for tap in range(axis.taps):
        at = axis.begin + tap * axis.step
        first = max(-((at + tile_stride - axis.stride) // tile_stride), 0)
        behind = min((axis.size - 1 - at) // tile_stride + 1, tiles)
        count += max(behind - first, 0)
    return extent * count
