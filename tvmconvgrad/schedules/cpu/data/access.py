"""How the sums of a register tile read their operands and write their results.

A copy of an operand costs as much as many products, and a result that is written against the memory's order more
still. Which of that a tile needs follows from where its vectors lie, so it is asked of each tile before one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import BF16_BYTES, CACHE_LINE, F32_BYTES, CpuMachine
from tvmconvgrad.schedules.cpu.costs import L2_BYTES, ROOM, SHARED
from tvmconvgrad.schedules.cpu.data.sizes import DataSizes, DataTile
from tvmconvgrad.schedules.factors import largest_divisor, nearest_run
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te import Multiples
from tvmconvgrad.te.plain import data_is_plain, filter_is_plain
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.tir.annotations import LEAST_SIDE

SUMMED = 16
"""Channels that are summed in one run: a cache line of f32."""

LEAST_FMAS = 48
"""How many an iteration of the innermost loop should have, where registers are few: small tiles make loops so short
that they wait for their instructions while another thread shares the core."""

FEW_ROWS = 256
"""How many positions a panel must serve to be worth a copy without being transposed."""

LEAST_RUN = 2 * CACHE_LINE
"""Bytes of a channel's positions that a tile must read to read them where they lie."""

PANEL, SMALL_PANEL = 0.6, 0.125
"""The share of the L2 cache that a panel may take, and one that is read faster than L2 brings it."""


@dataclass(frozen=True)
class DataAccess:
    """What a tile of sums of these sizes reads and writes, on a machine."""

    machine: CpuMachine
    sizes: DataSizes
    tile: DataTile

    @property
    def along(self) -> bool:
        """Whether the tile's vectors lie along the memory of data and result."""
        return (self.sizes.problem.data_format == "NXC") != (self.tile.vector_axis == "positions")

    # ---- what is read ----

    @cached_property
    def pairs(self) -> bool:
        """Whether the operands are bf16, of which an instruction adds up two summed channels at a time. Groups have
        enough of them to be transposed by pairs."""
        if not self.machine.multiplies_pairs or self.sizes.problem.dtype != "bf16":
            return False
        if self.tile.vector_axis == "groups":
            return self.along and self.sizes.k >= 2 * LEAST_SIDE
        return self.tile.vector_axis == "channels" and self.sizes.k > 1

    @property
    def bytes(self) -> int:
        """Bytes of an operand's element."""
        return BF16_BYTES if self.pairs else F32_BYTES

    def summed(self, in_place: bool) -> int:
        """How many channels are summed in one run, of data that is read where it lies or packed."""
        if self.tile.vector_axis == "positions":
            return 1
        if self.tile.vector_axis == "k":
            return self.machine.lanes
        run = largest_divisor if in_place else nearest_run
        return 2 * run(-(-self.sizes.k // 2), SUMMED) if self.pairs else run(self.sizes.k, SUMMED)

    @cached_property
    def products(self) -> int:
        """Multiply-adds, with all that is rounded up, and without what is left out."""
        sizes, run = self.sizes, self.summed(self.data_in_place)
        return sizes.products(self.tile) // sizes.k * ceil_to(sizes.k, run)

    @property
    def steps(self) -> int:
        """How many summed channels an iteration of the innermost loop adds, one after the other.

        One where a row's last tile has a single position, which LLVM computes alone, but only in a short loop; and of
        tall tiles of one vector, which LLVM would spill.
        """
        rows, columns, _ = self.tile.vectors(self.machine.lanes)
        leaves_one = any(size.positions[-1] % self.tile.positions == 1 for size in self.sizes.sums)
        if self.tile.vector_axis != "channels" or self.machine.registers > 16 or columns == 1 or leaves_one:
            return 1
        return max(LEAST_FMAS // (rows * columns), 1)

    def multiples(self, in_place: bool, implicit_axes: int = 0) -> Multiples:
        """What the tensor expression is rounded up to, and the type of its operands."""
        return self.sizes.multiples(self.tile, self.summed(in_place), implicit_axes, self.pairs)

    @property
    def implicit_axes(self) -> int:
        """Along how many axes a tile has one position, and no pads are packed before all work items."""
        return self.sizes.problem.geometry.rank - (1 if self.tile.rows == 1 else 2)

    @cached_property
    def data_in_place(self) -> bool:
        """Whether the data is read where it lies: it is f32, needs no zeros, the tile's order is the memory's, and its
        rows, where they are far apart, don't displace each other from the cache."""
        problem, tile, (data, _) = self.sizes.problem, self.tile, self.sizes.problem.input_shapes
        if not self.along or tile.vector_axis == "groups":
            return False
        if tile.vector_axis == "channels" and tile.positions > self.machine.rows_apart(self.bytes * data[-1]):
            return False
        if tile.vector_axis == "positions":
            near = self.sizes.k <= self.machine.rows_apart(F32_BYTES * prod(data[2:]))
            if not near or F32_BYTES * tile.positions < LEAST_RUN:
                return False
        return data_is_plain(problem, self.multiples(in_place=True))

    @cached_property
    def filter_in_place(self) -> bool:
        """Whether the filter is read where it lies: where its lanes are side by side, and few rows share a panel."""
        if self.tile.vector_axis == "k":
            return True
        problem, sizes = self.sizes.problem, self.sizes
        if self.pairs or self.tile.vector_axis != "channels" or not problem.filter_axes.endswith(sizes.column_axis):
            return False
        rows = problem.geometry.batch * max((prod(size.positions) for size in sizes.sums), default=0)
        return rows < FEW_ROWS and filter_is_plain(problem, self.multiples(in_place=True))

    @property
    def filter_stays(self) -> bool:
        """Whether the filter stays in the L2 cache, beside data."""
        return self.bytes * prod(self.sizes.problem.input_shapes[1]) <= self.machine.l2 // 2

    @cached_property
    def panel(self) -> int:
        """Elements of a panel that a work item packs; 0 where the filter is read where it lies."""
        if self.tile.vector_axis != "channels" or self.filter_in_place:
            return 0
        products = max((size.products for size in self.sizes.sums), default=0)
        return products * self.tile.n // (self.parts if self.may_add else 1)

    @cached_property
    def has_panels(self) -> bool:
        """Whether there may be room for panels: for all of them, or for one beside all data.

        There always is for one that L1 holds: a narrow tile for a small problem's few channels would save little.
        """
        data, weights = (prod(shape) for shape in self.sizes.problem.input_shapes)
        alone = self.panel + (0 if self.data_in_place else data)
        return self.bytes * self.panel <= self.machine.l1 or self.has_room(min(alone, weights))

    def has_room(self, elements: int) -> bool:
        """Whether so many elements of the operands, packed, take no more memory than the tensors."""
        return self.bytes * elements <= ROOM * self.sizes.problem.tensor_bytes

    # ---- what is written ----

    @cached_property
    def may_add(self) -> bool:
        """Whether tiles may be added up in memory, in parts: they lie whole along that of the result, or its rows are
        long enough to be transposed."""
        if self.tile.vector_axis != "channels":
            return False
        if self.along:
            return self.writes_whole_lines
        return all(size.positions[-1] >= LEAST_SIDE and size.n % self.tile.n == 0 for size in self.sizes.sums)

    def adds_aside(self, parts: int) -> bool:
        """Whether so many parts are added up in memory of the work item, since the result has another order or type."""
        return parts > 1 and not (self.along and self.sizes.problem.dtype == "f32")

    def panel_rate(self, positions: int) -> float:
        """Bytes of its panel that a tile of so many positions reads in a cycle, in which two FMAs start."""
        return 2 * F32_BYTES * self.machine.lanes / positions

    @cached_property
    def parts(self) -> int:
        """In how many parts a panel fits the L2 cache, beside data; where few positions use it, a small part of it."""
        products = max((size.products for size in self.sizes.sums), default=1)
        share = SMALL_PANEL if self.may_add and self.panel_rate(self.tile.positions) > L2_BYTES else PANEL
        return -(-self.bytes * products * self.tile.n // int(share * self.machine.l2))

    @property
    def writes_apart(self) -> bool:
        """Whether the results of a phase lie apart along the last axis."""
        problem = self.sizes.problem
        return problem.gradient is Gradient.DATA and problem.geometry.strides[-1] > 1

    @cached_property
    def transposes_result(self) -> bool:
        """Whether tiles are transposed in registers, to be written along positions, or along a group's channels: whole
        ones of neighbours, since where parts of a tile are left out it is written element by element."""
        tile = self.tile
        by_channels = self.sizes.problem.data_format == "NXC"
        if tile.vector_axis not in (("groups",) if by_channels else ("channels", "groups")):
            return False
        lanes = tile.groups if tile.vector_axis == "groups" else tile.n
        side = min(tile.n if by_channels else tile.positions, lanes)
        whole = self.sizes.problem.geometry.groups % tile.groups == 0 and all(
            size.positions[-1] % tile.positions == 0 and size.n % tile.n == 0 for size in self.sizes.sums
        )
        return side >= LEAST_SIDE and whole

    @property
    def writes_rows(self) -> bool:
        """Whether some vectors of a tile go beyond the end of a row of the result, or of a position's channels, or may:
        NCX has rows of any length."""
        sizes, tile = self.sizes, self.tile
        if tile.vector_axis == "channels":
            in_order = {size.n for size in sizes.sums} == {sizes.n}
            return self.along and in_order and sizes.n % tile.n > 0
        if tile.vector_axis != "positions":
            return False
        # of fewer channels in NXC, several positions share a line, and LLVM does as well
        cut = sizes.n >= LEAST_SIDE and any(size.positions[-1] % tile.positions for size in sizes.sums)
        return self.along or cut

    @property
    def writes_whole_lines(self) -> bool:
        """Whether the vectors of a tile are neighbours in the result's memory, and none goes beyond it."""
        sizes, tile, geometry = self.sizes, self.tile, self.sizes.problem.geometry
        if tile.vector_axis == "groups":
            return sizes.n == 1 and geometry.groups % tile.groups == 0
        if tile.vector_axis == "positions":
            return self.along and not self.writes_apart
        if geometry.groups > 1 and sizes.n * F32_BYTES % CACHE_LINE:
            return False  # groups share a line, which comes and goes for each of them
        vector = largest_divisor(tile.n, self.machine.lanes)
        return all(size.n % tile.n == 0 and (size.n == sizes.n or sizes.n % vector == 0) for size in sizes.sums)

    @property
    def may_store_non_temporally(self) -> bool:
        """Whether tiles may be written by non-temporal stores: each fills whole cache lines."""
        tile, row = self.tile, self.sizes.problem.output_shape[-1]
        if not self.machine.non_temporal or tile.vector_axis == "k" or not self.along or not self.writes_whole_lines:
            return False
        run = tile.positions if tile.vector_axis == "positions" else tile.n * tile.groups
        return row % self.sizes.line == 0 and run % self.sizes.line == 0

    @property
    def stores_non_temporally(self) -> bool:
        """Whether they are, by default: a result that is small stays in the cache for who reads it.

        Depthwise sums wait for memory, so theirs stays as long as all tensors may be there, if each vector is a line:
        else one that is not in the cache would be read from memory for its parts.
        """
        stays = self.sizes.is_depthwise and self.machine.lanes >= self.sizes.line
        fits = self.sizes.problem.tensor_bytes <= SHARED * self.machine.l3
        return self.may_store_non_temporally and self.sizes.has_large_output(self.machine.l3) and not (stays and fits)
