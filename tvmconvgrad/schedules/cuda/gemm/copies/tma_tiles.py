"""TMA tiles: operands that TMA copies to shared memory, tile by tile (ptx/tma.py).

One thread starts the copy of a whole tile, or of a part of its lines; no thread computes an address. A tensor map
describes the tensor to TMA, which writes zeros for what lies outside: padding, and the surplus of tiles.

    data      im2col mode: a line of channels for each position; pixels of the image in the order of the sum's
              positions, shifted by an offset for each tap
    filter    tiled mode: lines along K for each column, or along N for each element of K, of one tap

The sum's expression says where an element lies. It is affine in positions, so the map follows from a few of its values.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.sym import Analyzer

from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import TileOrigin
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import SwizzledTile
from tvmconvgrad.schedules.cuda.gemm.operands import Operand
from tvmconvgrad.schedules.cuda.hardware import VECTOR_BYTES, WORD
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.ptx import tma
from tvmconvgrad.schedules.cuda.writing import Mapped, number
from tvmconvgrad.spec import Geometry
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.rewriting import replaced, uses


@dataclass(frozen=True)
class TmaTiles:
    """One operand's tiles. If two blocks of a cluster share a tile, each copies half of it and multicasts it to
    both."""

    product: Product
    operand: Operand
    number: int
    tile: SwizzledTile
    shared: bool

    @property
    def along(self) -> int:
        """Elements of a line."""
        return self.tile.line_bytes // self.tile.item

    @property
    def parts(self) -> int:
        """The parts that a line of the tile is cut into."""
        return self.tile.vectors * VECTOR_BYTES // self.tile.line_bytes

    @property
    def _own_part(self) -> tuple[int, int]:
        """The parts that a block copies, and the lines of each."""
        if not self.shared:
            return self.parts, self.tile.lines
        return (self.parts // 2, self.tile.lines) if self.parts % 2 == 0 else (self.parts, self.tile.lines // 2)

    def copy(self, words: tirx.Buffer, begin: Index, place: TileOrigin, barrier: Index, cluster: Cluster) -> tirx.Stmt:
        """Begin to copy the tile at `place` to shared memory, from word `begin` on."""
        parts, lines = self._own_part
        first_part = cluster.place * parts if parts < self.parts else number(0)
        first_line = cluster.place * lines if lines < self.tile.lines else number(0)

        def part(i: int) -> tirx.Stmt:
            at = ((first_part + i) * self.along, first_line)
            position, k = reversed(at) if self.tile.by_position else at
            coordinates, offsets = self._coordinates(place, position, k)
            line = (first_part + i) * self.tile.lines + first_line
            to = writing.address(words, 4, begin + line * (self.tile.line_bytes // WORD))
            blocks = tirx.shift_left(number(0b11), cluster.partners[0]) if self.shared else None
            return tma.copy_tile(to, self.map, barrier, coordinates, offsets, blocks)

        return writing.seq(*map(part, range(parts)))

    @cached_property
    def map(self) -> Mapped:
        """The tensor map."""
        name = f"{self.product.sum.name}_{'ab'[self.number]}_map"
        sizes, (_, lines) = tuple(int(self._tensor.shape[axis]) for axis in self._kept), self._own_part
        dtype, line_bytes = self.product.problem.dtype, self.tile.line_bytes
        if self.operand.is_filter:
            extents = {0: self.along, self._axis_of_lines: lines}
            box = tuple(extents.get(axis, 1) for axis in range(len(sizes)))
            return Mapped.make(name, self._tensor, TensorMap(0, dtype, sizes, box, line_bytes))
        corners = tuple((each.low, each.last - (size - 1)) for each, size in zip(self._axes, sizes[1:]))
        steps = tuple(each.step for each in self._axes)
        pixels = TensorMap(0, dtype, sizes, (self.along, lines), line_bytes, corners, steps)
        return Mapped.make(name, self._tensor, pixels)

    def _coordinates(self, place: TileOrigin, position: Index, k: Index) -> tuple[list[Index], list[Index]]:
        """The coordinates of the tile's element at which a copy begins, and its offset from the pixels (im2col)."""
        at, of_k = (place.row, place.column)[self.number] + position, place.k + k
        row, column = (at, place.column) if self.number == 0 else (place.row, at)
        bound = self.product.bound(place.group, row, column, of_k)
        found = [replaced(each, bound) for each in self._index]
        if self.operand.is_filter:
            return found, []
        pixels = [each.low + each.step * bound[each.position] for each in self._axes]
        return [found[0], *pixels, found[-1]], [at - pixel for at, pixel in zip(found[1:-1], pixels)]

    @cached_property
    def _axes(self) -> list[PixelAxis]:
        """The spatial axes of the tensor, last one first."""
        _, *positions = self.product.positions
        return [PixelAxis.of(self.product, *each) for each in zip(self._index[1:-1], reversed(positions))]

    @property
    def _axis_of_lines(self) -> int:
        """The axis of the filter across lines."""
        *_, column = self.product.sum.variables
        across = column if self.tile.by_position else self.product.sum.summed[-1]
        none = dict.fromkeys(self.product.extents, 0)
        distances = [_value(each, {**none, across: 1}) - _value(each, none) for each in self._index]
        return distances.index(1)

    @property
    def _tensor(self) -> tirx.Buffer:
        return self._element[0]

    @cached_property
    def _index(self) -> list[Index]:
        """The index in the tensor of the element that the sum reads, innermost axis first."""
        return [self._element[1][axis] for axis in self._kept]

    @cached_property
    def _element(self) -> tuple[tirx.Buffer, list[Index]]:
        """The tensor, and the index of an element in it."""
        return self.operand.element(list(self.product.loads[self.number].indices))

    @property
    def _kept(self) -> list[int]:
        """The axes of the tensor, innermost first, without the axis of groups that a packed operand has."""
        rank = len(self._tensor.shape)
        groups = None if self.operand.packed is None else 0 if self.operand.is_filter else 1
        return [axis for axis in reversed(range(rank)) if axis != groups]


@dataclass(frozen=True)
class PixelAxis:
    """A spatial axis of the data: the pixel of position p is `low` + p * `step`."""

    position: tirx.Var
    low: int
    step: int
    last: int
    """The pixel of the last position."""

    @classmethod
    def of(cls, product: Product, index: Index, position: tirx.Var) -> PixelAxis:
        """The axis along which a sum reads element `index`. The pixels are those of the tap (and output phase) that
        reads the first elements; other taps have an offset from them."""
        extents = product.extents
        others = [var for var in extents if not var.same_as(position) and uses(index, var)]
        ends = itertools.product(*((0, extents[var] - 1) for var in others))
        low = min(_value(index, {position: 0, **dict(zip(others, end))}) for end in ends)
        none = dict.fromkeys(others, 0)
        step = _value(index, {position: 1, **none}) - _value(index, {position: 0, **none})
        return cls(position, low, step, low + (extents[position] - 1) * step)


def reachable(geometry: Geometry) -> bool:
    """Whether tensor maps can describe the geometry: the distances of padding and taps from an image's border, and the
    stride."""
    most = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}[geometry.rank]
    axes = zip(geometry.k, geometry.dilations, geometry.strides, geometry.pads_begin, geometry.pads_end)
    return all(
        stride <= 8 and (k - 1) * dilation + stride + begin + end < most for k, dilation, stride, begin, end in axes
    )


def _value(index: Index, values: Mapping[tirx.Var, int]) -> int:
    return int(Analyzer().simplify(replaced(index, {var: number(value) for var, value in values.items()})))
