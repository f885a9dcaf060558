"""The sizes of a gradient's matrix products, and how often a tile of them meets the same data of A.

Taps beside each other meet nearly the same elements. A tile whose rows are positions meets them tap after tap, one
whose rows are taps at once, or a row of positions later: if they stay in the L1 cache meanwhile, few come from the L2
cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from tvmconvgrad.schedules.cuda.gemm.operands import vector_lanes
from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.data_gradient import parts
from tvmconvgrad.te.tensors import ceil_to, group_sizes

LINE_BYTES = 128
"""Of the L1 cache."""


@dataclass(frozen=True)
class Reuse:
    """What of A a tile finds in L1."""

    new: float
    """The part that comes from L2, of all that is copied to shared memory."""
    bytes: int
    """What has to stay in L1."""


@dataclass(frozen=True)
class Axis:
    """How the taps of one spatial axis meet data: `size` positions, `stride` elements apart, each with `taps` taps that
    are `step` elements apart."""

    size: int
    stride: int
    taps: int
    step: int

    def met(self, positions: int) -> int:
        """How many elements some neighbouring positions meet."""
        return (positions - 1) * self.stride + (self.taps - 1) * self.step + 1


@dataclass(frozen=True)
class Size:
    """Rows, columns and summed elements of one product of a group, before any rounding."""

    rows: int
    columns: int
    summed: int
    axes: tuple[Axis, ...]
    channels: int
    """Of A, which lie innermost."""
    item: int
    """Bytes of an element."""
    by_taps: bool
    """Whether rows are taps (and channels), and not positions."""

    def chunk(self, block_k: int) -> int:
        """How many channels meet all taps before the next ones do (`Product.chunk`), with stages of so many summed
        elements: at least a line of the cache, whose parts would take as much room."""
        line = LINE_BYTES // self.item
        return line if self.by_taps else max(block_k, line)

    def reuse(self, rows: int, block_k: int) -> Reuse:
        """What a tile of so many rows, with stages of so many summed elements, finds in L1."""
        rows = min(rows, self.rows)
        return self._by_taps(rows, block_k) if self.by_taps else self._by_positions(rows, block_k)

    def _by_positions(self, rows: int, block_k: int) -> Reuse:
        """All taps meet a chunk of the channels one after the other, then the next one."""
        met, left = 1, float(rows)
        for axis in reversed(self.axes):
            met *= axis.met(min(axis.size, ceil(left)))
            left /= axis.size
        met = ceil(met * max(left, 1.0))  # of so many images
        taps = prod(axis.taps for axis in self.axes)
        return Reuse(min(met / (rows * taps), 1.0), met * _line(min(self.chunk(block_k), self.channels) * self.item))

    def _by_taps(self, rows: int, block_k: int) -> Reuse:
        """A tile has a chunk of the channels at several taps. Each position is met by neighbouring ones; along the last
        axis soon, along others rows of positions later."""
        channels = min(self.chunk(block_k), self.channels)
        together = min(max(rows / channels, 1.0), float(prod(axis.taps for axis in self.axes)))
        strides = prod(axis.stride for axis in self.axes)
        met, left, inner = Axis(block_k, self.axes[-1].stride, 1, 1).met(block_k), together, 1
        for axis in reversed(self.axes):
            met += (min(axis.taps, ceil(left)) - 1) * axis.step * inner
            left, inner = left / axis.taps, inner * axis.size * axis.stride
        return Reuse(min(strides / together, 1.0), met * _line(min(rows, channels) * self.item))


def _line(size: int) -> int:
    return ceil_to(size, LINE_BYTES)


@lru_cache(maxsize=256)
def sizes(problem: Problem) -> tuple[Size, ...]:
    """The products of a group, one for each sum."""
    return tuple(_each_size(problem))


def _each_size(problem: Problem) -> Iterator[Size]:
    geometry, lanes = problem.geometry, vector_lanes(problem)
    c, o = (ceil_to(size, lanes) for size in group_sizes(geometry))
    item = ITEM_BYTES[problem.dtype]
    positions, taps = geometry.batch * prod(geometry.y), prod(geometry.k)
    if problem.gradient is Gradient.FILTER:
        yield Size(taps * c, o, positions, _axes(geometry, geometry.y), c, item, True)
    elif problem.gradient is Gradient.FORWARD:
        yield Size(positions, o, taps * c, _axes(geometry, geometry.y), c, item, False)
    else:
        for part in parts(problem, Multiples()):
            axes = (Axis(size, 1, p.taps, p.dilation) for size, p in zip(part.positions, part.phase_groups))
            rows = geometry.batch * prod(part.positions)
            yield Size(rows, part.channels, part.taps * o, tuple(axes), o, item, False)


def _axes(geometry: Geometry, positions: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(map(Axis, positions, geometry.strides, geometry.k, geometry.dilations))
