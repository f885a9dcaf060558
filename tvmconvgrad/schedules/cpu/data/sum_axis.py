"""One axis of a sum of a data gradient or a forward: what each position reads at each tap, and which products with
padding are left out.

A tap at which a tile reads nothing but padding is left out as a whole. Other padding may be left out position by
position: then the program has a copy of the tile's products for each tap, and for a row's first, last and other tiles,
each without those positions that read padding (transforms/padding_elision.py). Of 3 taps in rows of 7 and of 14
positions, these are 2 of 21 products, and 2 of 42.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

MOST_TAPS, MOST_TILES = 7, 3
"""Padding is left out by position along an axis of at most so many taps, each of which has a copy of the program; and,
where also tiles in the middle of a row meet padding, of so many tiles."""

LEAST_LEFT_OUT = 0.02
"""The least share of the products for which padding is left out by position. 28 forwards and 36 data gradients became
1.03 and 1.05 times as fast in the mean, from 0.95 to 1.28; ResNet-50's res4a_branch2b and res5a_branch2b (data; 0.048
and 0.095 are padding) 1.05 and 1.12 times in f16, 1.05 and 1.1 in bf16 pairs, and res5a_branch2b 1.13 with AVX2 (an
Intel Xeon with AMX)."""


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

    def computed_by_position(self, extent: int, least: int = 1) -> int:
        """The same where also other padding is left out, position by position, if that needs few copies. The sums of
        fewer than `least` positions take as long as those of `least`, and surplus ones as long as others."""
        tiles = -(-self.positions // extent)
        ends = range(tiles) if tiles <= MOST_TILES else (0, tiles - 1)
        count = (tiles - len(ends)) * extent * self.taps
        for begin, tap in product((tile * extent for tile in ends), range(self.taps)):
            behind = begin + extent
            if self._reading(begin, behind, tap):
                surplus = max(behind - self.positions, 0)
                count += max(self._reading(begin, behind - surplus, tap) + surplus, least)
        return count

    def _reading(self, begin: int, behind: int, tap: int) -> int:
        """How many of the positions from `begin` to `behind` read data at a tap."""
        at = self.begin + tap * self.step
        first = max(-(at // self.stride), begin)
        return max(min((self.size - 1 - at) // self.stride + 1, behind) - first, 0)

    def may_leave_out_by_position(self, extent: int) -> bool:
        """Whether in tiles of `extent` positions few copies of the program suffice to leave out padding by position:
        there are few taps, and few tiles, or those in the middle of a row meet no padding."""
        tiles = -(-self.positions // extent)
        ends = [self.begin, self.begin + (self.taps - 1) * self.step]
        first, last = min(ends) + extent * self.stride, max(ends) + ((tiles - 1) * extent - 1) * self.stride
        return self.taps <= MOST_TAPS and (tiles <= MOST_TILES or (first >= 0 and last < self.size))


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
