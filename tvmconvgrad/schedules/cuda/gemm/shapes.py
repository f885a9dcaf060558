"""The shapes of a gradient's matrix products, and how much of A a tile finds in L1.

Neighbouring taps read nearly the same elements. If M are positions, a tile reads these again at the next tap. If M are
taps, it reads them for several taps at once, or one row of positions later. If the elements stay in L1 until then, few
come from L2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from tvmconvgrad.schedules.cuda.hardware import LINE_BYTES
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.spec import Geometry, Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.te.data_gradient import phase_convolutions
from tvmconvgrad.te.tensors import ceil_to, group_sizes


@dataclass(frozen=True)
class Reuse:
    """How much of A a tile finds in L1."""

    new: float
    """The share of what is copied to shared memory that comes from L2."""
    bytes: int
    """Bytes that must stay in L1 for that."""


@dataclass(frozen=True)
class ReadAxis:
    """What is read along one spatial axis: `size` positions, `stride` elements apart, each with `taps` taps that are
    `step` elements apart."""

    size: int
    stride: int
    taps: int
    step: int

    def reads(self, positions: int) -> int:
        """The number of elements that so many neighbouring positions read."""
        return (positions - 1) * self.stride + (self.taps - 1) * self.step + 1


@dataclass(frozen=True)
class GemmShape:
    """M, N and K of one group's product, before they are rounded up to tiles."""

    m: int
    n: int
    k: int
    axes: tuple[ReadAxis, ...]
    channels: int
    """Channels of A."""
    item: int
    """Bytes of an element."""
    by_taps: bool
    """Whether M are taps and channels, instead of positions."""

    def channel_block(self, block_k: int) -> int:
        """The size of a block of A's channels (`Product.channel_block`): at least a cache line, since a part of one
        takes as much room in L1."""
        line = LINE_BYTES // self.item
        return line if self.by_taps else max(block_k, line)

    def reuse(self, m: int, block_k: int) -> Reuse:
        """What a tile of `m` rows finds in L1, with stages of `block_k` elements of K."""
        m = min(m, self.m)
        return self._by_taps(m, block_k) if self.by_taps else self._by_positions(m, block_k)

    def _by_positions(self, m: int, block_k: int) -> Reuse:
        """Reuse if M are positions: all taps read one block of channels, one after the other, then the next block."""
        read, left = 1, float(m)
        for axis in reversed(self.axes):
            read *= axis.reads(min(axis.size, ceil(left)))
            left /= axis.size
        read = ceil(read * max(left, 1.0))  # of so many images
        taps = prod(axis.taps for axis in self.axes)
        return Reuse(
            min(read / (m * taps), 1.0), read * _line(min(self.channel_block(block_k), self.channels) * self.item)
        )

    def _by_taps(self, m: int, block_k: int) -> Reuse:
        """Reuse if M are taps: a tile has one block of channels at several taps. An element is read again by
        neighbouring positions: soon along the last axis, and rows of positions later along the others."""
        channels = min(self.channel_block(block_k), self.channels)
        together = min(max(m / channels, 1.0), float(prod(axis.taps for axis in self.axes)))
        strides = prod(axis.stride for axis in self.axes)
        read, left, inner = ReadAxis(block_k, self.axes[-1].stride, 1, 1).reads(block_k), together, 1
        for axis in reversed(self.axes):
            read += (min(axis.taps, ceil(left)) - 1) * axis.step * inner
            left, inner = left / axis.taps, inner * axis.size * axis.stride
        return Reuse(min(strides / together, 1.0), read * _line(min(m, channels) * self.item))


def _line(size: int) -> int:
    return ceil_to(size, LINE_BYTES)


@lru_cache(maxsize=256)
def gemm_shapes(problem: Problem) -> tuple[GemmShape, ...]:
    """The shapes of a group's products, one for each sum."""
    return tuple(_each_shape(problem))


def _each_shape(problem: Problem) -> Iterator[GemmShape]:
    geometry, lanes = problem.geometry, vector_lanes(problem)
    c, o = (ceil_to(size, lanes) for size in group_sizes(geometry))
    item = ITEM_BYTES[problem.dtype]
    positions, taps = geometry.batch * prod(geometry.y), prod(geometry.k)
    if problem.gradient is Gradient.FILTER:
        yield GemmShape(taps * c, o, positions, _axes(geometry, geometry.y), c, item, True)
    elif problem.gradient is Gradient.FORWARD:
        yield GemmShape(positions, o, taps * c, _axes(geometry, geometry.y), c, item, False)
    else:
        for part in phase_convolutions(problem):
            axes = (ReadAxis(size, 1, p.taps, p.dilation) for size, p in zip(part.positions, part.phase_groups))
            m = geometry.batch * prod(part.positions)
            yield GemmShape(m, part.channels, part.taps * o, tuple(axes), o, item, False)


def _axes(geometry: Geometry, positions: Sequence[int]) -> tuple[ReadAxis, ...]:
    return tuple(map(ReadAxis, positions, geometry.strides, geometry.k, geometry.dilations))
