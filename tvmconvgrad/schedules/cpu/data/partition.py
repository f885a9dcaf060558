"""How the sums of a register tile are split into work items: partitions of positions, of groups and of columns.

There should be enough work items for many cores. More of them read panels, and data at their borders, more often;
larger ones need more cache. So of partitions of positions those are taken that bring least from beyond the L2 cache,
and groups and columns are split where these are too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import F32_BYTES
from tvmconvgrad.schedules.cpu.costs import TRAFFIC
from tvmconvgrad.schedules.cpu.data.access import DataAccess
from tvmconvgrad.schedules.cpu.data.tiles import cost
from tvmconvgrad.schedules.factors import inner_extents, largest_divisor

TASKS = 28
"""How many parallel work items a sum should have at least: enough for many cores, few enough to stay large; and a
divisor of many layers' rows."""

SURPLUS = 2
"""How much more data than there is may be packed, before it is better packed once, by all threads, through memory."""

REPACKS = 4
"""How many column partitions may pack the same data, each for itself; for more it is packed once, to memory."""

NEAR = 0.1
"""What a byte of panels from the last-level cache costs, one after the other, as a part of what one of memory costs."""


SLACK = 0.01
"""How much longer a sum may take for partitions of which there are enough, as a part of what it takes."""


@dataclass(frozen=True)
class Ranges:
    """A way to split the positions into partitions."""

    tiles: int
    work_items: int
    surplus: float
    """How much more data the partitions read than there is: neighbours read the same at their border."""
    traffic: float
    """Bytes that come from beyond the L2 cache, about."""
    read: int
    """Elements of a channel that a partition reads."""


def _partitions(extents: Sequence[int], partition_tiles: int) -> int:
    """How many partitions of about so many tiles there are of these images and tiles along each axis."""
    return prod(extents) // prod(inner_extents(extents, partition_tiles))


@dataclass(frozen=True)
class Splitting:
    """Splits the sums of a tile into work items."""

    access: DataAccess

    @cached_property
    def partitions(self) -> Ranges:
        """The partitions with about the least traffic from beyond the L2 cache, of those that have room; of these, the
        largest of which there are enough.

        A partition reads every panel, and its data for every column block, from wherever they fit. Panels that several
        partitions share are written to memory before, and read from there.
        """
        sizes, tile = self.access.sizes, self.access.tile
        if not sizes.sums:
            return Ranges(1, 1, 1.0, 0.0, 0)
        extents = self._extents
        if self._has_small_images:
            return self._partition(extents, [1, *extents[1:]])
        most = min(prod(extents), self._most_tiles)
        limits = {most // part for part in range(1, min(most, 8 * TASKS) + 1)}
        inners = {tuple(inner_extents(extents, limit)) for limit in limits}
        found = [self._partition(extents, inner) for inner in sorted(inners)]
        # panels take least where a single work item packs its own; else it is the data that may be packed by smaller
        # partitions
        smallest = (
            self._partition(extents, extents)
            if self.access.panel
            else min(found, key=lambda partitions: partitions.read)
        )
        found = [partitions for partitions in found if self.has_room(partitions)] or [smallest]
        least = min(partitions.traffic for partitions in found)
        allowed = max(1.1 * least, least + SLACK * cost(self.access) / TRAFFIC)
        best = [partitions for partitions in found if partitions.traffic <= allowed]
        enough = [partitions for partitions in best if partitions.work_items * sizes.group_blocks(tile) >= TASKS]
        return max(enough, key=lambda r: r.tiles) if enough else min(best, key=lambda r: r.tiles)

    @property
    def group_partitions(self) -> int:
        """Partitions of groups that make enough work items; of small images, so many that a work item's stay in half of
        L1."""
        wanted = -(-TASKS // self.partitions.work_items)
        if not self._has_small_images:
            return wanted
        return max(wanted, self.access.sizes.problem.geometry.groups * self._image // (self.access.machine.l1 // 2))

    def n_partitions(self, group_partitions: int) -> int:
        """Partitions of columns that make enough work items together with so many of groups."""
        return -(-TASKS // (self.partitions.work_items * group_partitions))

    def may_pack_by_work_item(self, n_partitions: int) -> bool:
        """Whether work items may each pack their data, rather than all of it be packed before them."""
        return n_partitions <= REPACKS and self._may_pack_again(self.partitions.surplus)

    def work_items_correspond(self, partition_tiles: int, n_partitions: int) -> bool:
        """Whether all sums have as many work items, which are then joined (schedules/transforms/task_fusion.py)."""
        sizes, tile = self.access.sizes, self.access.tile
        counts = set()
        for size, rows in zip(sizes.sums, sizes.row_blocks(tile)):
            columns = largest_divisor(-(-size.n // tile.n), n_partitions)
            counts.add(_partitions(rows, partition_tiles) * columns)
        return len(counts) == 1

    def position_partitions(self, partition_tiles: int) -> int:
        """How many partitions of so many tiles there are, of that sum which has most."""
        rows = self.access.sizes.row_blocks(self.access.tile)
        return max((_partitions(extents, partition_tiles) for extents in rows), default=1)

    def has_room(self, partitions: Ranges) -> bool:
        """Whether the packed filter, or the panels of a work item that shares them with no other, and the data of a
        work item take no more memory than the tensors."""
        access, sizes = self.access, self.access.sizes
        if access.filter_in_place:
            return True
        data = 0 if access.data_in_place else partitions.read * sizes.k
        alone = access.panel > 0 and partitions.work_items == 1 and not access.filter_stays
        return access.has_room((access.panel if alone else prod(sizes.problem.filter_shape)) + data)

    def _partition(self, extents: Sequence[int], inner: Sequence[int]) -> Ranges:
        """Partitions of `inner` images and tiles along each axis, of `extents` in all."""
        access, sizes, geometry = self.access, self.access.sizes, self.access.sizes.problem.geometry
        read, work_items = self._read(inner), prod(extents) // prod(inner)
        surplus = work_items * read / self._read(extents)
        packed = 1.0 if access.data_in_place else surplus
        together = 1 if self._has_small_images else geometry.groups
        fits = access.bytes * read * together * sizes.k <= access.machine.l2
        times = 1 if fits else max(sizes.column_blocks(access.tile), 2)
        few = work_items * sizes.group_blocks(access.tile) < TASKS
        if not access.data_in_place and (few or not self._may_pack_again(surplus)):
            packed, times = 1.0, times + 2  # packed before all work items: to memory, and from there
        data, filter_ = (access.bytes * prod(shape) for shape in sizes.problem.input_shapes)
        again = 0.0 if access.filter_stays else NEAR if filter_ <= access.machine.l3 else 1.0
        once = 1 if work_items == 1 or access.filter_stays else 3
        traffic = data * packed * times + filter_ * (once + again * (work_items - 1))
        return Ranges(prod(inner), work_items, surplus, traffic, read)

    @cached_property
    def _extents(self) -> list[int]:
        """Images and tiles along each axis of the largest sum."""
        return max(self.access.sizes.row_blocks(self.access.tile), key=prod)

    def _read(self, extents: Sequence[int]) -> int:
        """Elements of a channel that so many images and tiles along each axis read."""
        images, *blocks = extents
        covered = self.access.tile.covered(blocks)
        axes = zip(covered, self.access.sizes.steps, self.access.sizes.halo)
        return images * prod(size * step + halo for size, step, halo in axes)

    def _may_pack_again(self, surplus: float) -> bool:
        """Whether partitions may pack so much more data than there is."""
        return surplus <= SURPLUS or self._shares_rows

    @cached_property
    def _has_small_images(self) -> bool:
        """Whether a work item takes whole images of some groups, with vectors over positions: groups share nothing, and
        an image fits the cache."""
        sizes = self.access.sizes
        by_rows = self.access.tile.vector_axis == "positions" and sizes.problem.data_format == "NCX"
        return by_rows and sizes.is_depthwise and self._image <= self.access.machine.l2 // 2

    @property
    def _image(self) -> int:
        """Bytes of an image's data, of one group."""
        return F32_BYTES * self.access.sizes.k * self._read([1, *self._extents[1:]])

    @property
    def _shares_rows(self) -> bool:
        """Whether phases of a depthwise gradient write to the same rows, one after the other: what they write, which is
        several times what they read, should stay in the L2 cache until the last has done so."""
        sizes = self.access.sizes
        return self.access.tile.vector_axis == "groups" and len(sizes.sums) > 1 and sizes.k == 1

    @property
    def _most_tiles(self) -> int:
        """How many row blocks a partition may have."""
        if not self._shares_rows:
            return 1 << 62
        sizes, tile = self.access.sizes, self.access.tile
        columns = sizes.problem.geometry.groups * sum(size.n for size in sizes.sums)
        row_block = F32_BYTES * tile.rows * tile.positions * columns
        return max(self.access.machine.l2 // 2 // row_block, 1)
