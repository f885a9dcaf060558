"""How a register tile reads its operands: in place or packed, as pairs, and by how many channels at a time.

Packing an operand costs as much as many products. Whether a tile needs it follows from its vectorised axis. So this is
asked of every tile before one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from tvmconvgrad.machines.cpu import BF16_BYTES, CACHE_LINE, F32_BYTES
from tvmconvgrad.schedules.cpu.data import masked
from tvmconvgrad.schedules.cpu.data.results import DataResults
from tvmconvgrad.schedules.cpu.data.sizes import WORK_ITEMS, DataAxis
from tvmconvgrad.schedules.cpu.data.sum_axis import MOST_TILES, SumAxis
from tvmconvgrad.schedules.cpu.micro_kernel import holds_rows
from tvmconvgrad.schedules.cpu.packing import BLOCK_K
from tvmconvgrad.schedules.cpu.tile_registers import LEAST_CHANNELS
from tvmconvgrad.schedules.expressions import Blocking
from tvmconvgrad.schedules.expressions.plain import data_is_plain, filter_is_plain
from tvmconvgrad.schedules.factors import largest_divisor, nearest_run
from tvmconvgrad.schedules.transforms.software_pipelining import leaves_time
from tvmconvgrad.spec import Gradient
from tvmconvgrad.te.tensors import ceil_to
from tvmconvgrad.tir.passes.limits import LEAST_SIDE

LEAST_FMAS = 48
"""FMAs that an iteration of the innermost loop should have on CPUs with 16 vector registers. Their tiles are small, and
a loop of 12 FMAs waits for its instructions while another thread shares the core: with 48, 71 gradients were 1.034
times as fast in the mean (Zen 3)."""

ELEMENTS_AHEAD = 2
"""CPUs whose FMAs multiply by an element of a vector add as many channels in an iteration as a vector has, if the
registers that sums and vectors leave hold so many elements of each row: LLVM loads two with one instruction, before the
first is used. With 1 and 4 channels, tiles of 4 x 16 make 7.5 and 7.9 products in a cycle of a Neoverse N2 (of 8) and
13.4 and 15.7 of a V2 (of 16), says llvm-mca 19; of 6 x 16, which leave too few, 7.6 and 7.3, and 13.1 and 14.6."""

FEW_POSITIONS, FEW_POSITIONS_FAR = 256, 16
"""A filter that need not be transposed is packed if at least so many positions use a panel; the second number is for a
filter that does not fit L2. Forwards of 1 to 225 positions (an Intel Xeon with AMX): 128 to 96 channels 3x3, whose
filter fits L2, took 0.99 to 1.4 times as long if it was packed; 512 to 2048 channels 1x1 and 512 to 512 3x3 0.8 times
from 49 positions on, 0.95 at 16, and 1.2 times at 4. U-Net's down5_1 and down5_2 and VGG-19's conv5_1 took 0.31 to 0.58
of the time when they were packed."""

LEAST_RUN = 2 * CACHE_LINE
"""Tiles with vectors over positions that read data in place prefetch at least so many bytes of a row together: with
half and with twice ResNet-50's res2a_branch1 and MobileNetV2's block4_expand (data) took as long (an AMD EPYC with Zen
5). Where they cannot prefetch, data is read in place only if a tile reads so many bytes of a row. With half of it 1 sum
changes, and takes 1.37 times as long; with twice, 2 and 1.08 (benchmarks/constants.py)."""

FOLLOWED_ROWS = 16
"""Rows of fewer channels are not prefetched. Those of 3, 3D U-Net's classes (data), took 4 times as long when they
were, and each tile's results of all channels were written one after the other; those of 16, MobileNetV2's
block1_project (data), 0.8 times (an AMD EPYC with Zen 5)."""

FEW_PRODUCTS = 4
"""Depthwise data of 16 bits in NXC is read in place if each element has at most so many products, since it is converted
for each tap that reads it. MobileNetV2's block4_depthwise (forward), of 2.25, took 0.70 and 0.68 of the time in bf16
and f16; with 9 block2b_depthwise took 0.94 to 1.25 times, with 49 ConvNeXt's stage1_depthwise 1.2 to 2.1 times as long
(an Intel Xeon with AMX)."""


@dataclass(frozen=True)
class DataOperands(DataResults):
    """How a register tile reads its operands and writes its results, for sums of these sizes on a machine."""

    @cached_property
    def pairs(self) -> bool:
        """Whether operands are bf16 dot-product pairs: an instruction adds up the products of two K channels. With
        vectors over groups, K must be long enough for pairs to be transposed in registers; vectors over positions are
        contiguous in the user's data."""
        able = self.machine.takes_pairs(in_tile_registers=bool(self.tile.tile_rows))
        if not able or self.sizes.problem.dtype != "bf16":
            return False
        if self.tile.vector_axis is DataAxis.GROUPS:
            return self.has_contiguous_vectors and self.sizes.k >= 2 * LEAST_SIDE
        several = self.sizes.k > 1 or bool(self.tile.tile_rows)  # of one channel a tile adds up several taps
        if self.tile.vector_axis is DataAxis.M:
            return self.has_contiguous_vectors and self.sizes.reads_neighbours and several
        return self.tile.vector_axis is DataAxis.N and several

    @property
    def bytes(self) -> int:
        """Bytes of an operand's element."""
        return BF16_BYTES if self.pairs else F32_BYTES

    def block_k(self, in_place: bool) -> int:
        """BLOCK_K in channels, for data that is read in place or packed."""
        if self.tile.vector_axis is DataAxis.M and not self.tile.has_channel_rows:
            return 2 if self.pairs else 1
        if self.tile.vector_axis is DataAxis.K:
            return self.machine.lanes
        if self.sizes.k < LEAST_SIDE and not self.has_contiguous_vectors and not self.pairs:
            return 1  # of fewer channels no square is transposed; LLVM would scatter their elements
        run = largest_divisor if in_place else nearest_run
        return 2 * run(-(-self.sizes.k // 2), BLOCK_K) if self.pairs else run(self.sizes.k, BLOCK_K)

    @cached_property
    def products(self) -> int:
        """Multiply-adds, including what tiles and BLOCK_K round up, without those that are left out as padding. Fewer
        sums than a core has FMAs in flight take as long as those."""
        sizes, run = self.sizes, self.block_k(self.data_in_place)
        _, columns, _ = self.tile.vectors(self.machine.lanes)
        least = min(ceil(self.machine.fmas_in_flight / columns), self.tile.positions)

        def charged(axis: SumAxis, extent: int) -> int:
            by_position = self.leaves_out_by_position
            return axis.charged_by_position(extent, least) if by_position else axis.computed(extent)

        return sizes.products(self.tile, charged) // sizes.k * ceil_to(sizes.k, run)

    @property
    def steps(self) -> int:
        """How many K channels an iteration of the innermost loop adds, one after the other.

        One if a row's last tile has a single position: LLVM computes that alone, but only in a short loop. One also
        for tiles of one vector, which LLVM would spill.
        """
        rows, columns, _ = self.tile.vectors(self.machine.lanes)
        leaves_one = any(size.positions[-1] % self.tile.positions == 1 for size in self.sizes.sums)
        if self.tile.vector_axis is not DataAxis.N or columns == 1 or leaves_one:
            return 1
        if self.machine.by_element:
            left = self.machine.registers - rows * columns - columns
            return self.machine.lanes if ELEMENTS_AHEAD * rows <= left else 1
        return 1 if self.machine.registers > 16 else max(LEAST_FMAS // (rows * columns), 1)

    @property
    def holds_rows(self) -> bool:
        """Whether the operands of a tile's positions stay in registers while one vector of channels after the other
        meets them (micro_kernel.py)."""
        rows, columns, _ = self.tile.vectors(self.machine.lanes)
        return self.tile.vector_axis is DataAxis.N and holds_rows(self.machine, rows, columns)

    @cached_property
    def leaves_out_by_position(self) -> bool:
        """Whether products with padding along a row are left out position by position: where they may be, but not where
        rows are split to have enough work items. Nor where sums take all registers (`holds_rows`), and many tiles leave
        surplus positions: LLVM spills in the last tile, and ResNet-50's res3a_branch2b and res4a_branch2b (data) took
        1.2 and 1.1 times as long with AVX2 (an Intel Xeon with AMX)."""
        sizes, extent = self.sizes, self.tile.positions
        if not sizes.may_leave_out_by_position(self.tile):
            return False
        blocks = sizes.problem.geometry.batch * sizes.group_blocks(self.tile) * sizes.n_blocks(self.tile)
        for *others, row in (size.positions for size in sizes.sums):
            splits = row > extent and blocks * prod(others) < WORK_ITEMS
            spills = self.holds_rows and row % extent and row > MOST_TILES * extent
            if splits or spills:
                return False
        return True

    @property
    def filter_run(self) -> int:
        """How many channels of K are contiguous in a panel at each of N: one, a pair, or, where those of N are the rows
        of a tile register, all of a K block."""
        if self.tile.has_channel_rows:
            return self.block_k(in_place=False)
        return 2 if self.pairs else 1

    @property
    def phases_of_one_run(self) -> tuple[int, ...]:
        """The output phases along each axis whose taps are packed as one run (`DataSizes.phases_of_one_run`)."""
        return self.sizes.phases_of_one_run(self.tile, self.pairs)

    def blocking(self, in_place: bool, implicit_axes: int = 0) -> Blocking:
        """The blocks that the tensor expression is rounded up to, and the type of its operands."""
        return self.sizes.blocking(self.tile, self.block_k(in_place), implicit_axes, self.pairs)

    @property
    def implicit_axes(self) -> int:
        """The number of spatial axes along which a tile has one position, so padding may be implicit in data that is
        packed before all work items."""
        return self.sizes.problem.geometry.rank - (1 if self.tile.rows == 1 else 2)

    @cached_property
    def data_in_place(self) -> bool:
        """Whether the data is read in place: depthwise data also with padding, all other if it needs no conversion, and
        no padding but what is left out, the tile's vectors or rows follow its memory, and the rows that a tile reads
        side by side cause no conflict misses in L1, or in L2 if they are prefetched. Tile registers need K blocks that
        divide K."""
        problem, tile, (data, _) = self.sizes.problem, self.tile, self.sizes.problem.input_shapes
        if self.masks_data or self.leaves_out_padding:
            return True
        if self.broadcasts_in_place:
            return data_is_plain(problem, self.blocking(in_place=True))
        if not self.has_contiguous_vectors or tile.vector_axis is DataAxis.GROUPS:
            return False
        if tile.vector_axis is DataAxis.M and self.pairs:
            return False
        if tile.tile_rows and self.block_k(in_place=True) < LEAST_CHANNELS:
            return False
        if tile.vector_axis is DataAxis.N and tile.positions > self.machine.rows_without_conflicts(
            self.bytes * data[-1]
        ):
            return False
        if tile.vector_axis is DataAxis.M:
            near = self._meets_no_conflicts and F32_BYTES * tile.positions >= LEAST_RUN
            if not self.may_pipeline and not near:
                return False
        return data_is_plain(problem, self.blocking(in_place=True, implicit_axes=self.implicit_axes_in_place))

    @cached_property
    def implicit_axes_in_place(self) -> int:
        """The number of spatial axes along which data that is read in place may have padding, since all of it is left
        out: all axes, or none. Padding along a row must be left out by position, the reads not be strided, and the
        result have a single N block. 19 such forwards and 18 data gradients became 1.03 times as fast in the mean, from
        0.98 and 0.83 to 1.22 and 1.30. With several N blocks packed data was as fast or faster (ResNet-50's
        res4a_branch2b, DCGAN's judge4). ResNeXt's conv5a_grouped (forward), which is strided, took 1.3 times as long in
        place (an Intel Xeon with AMX)."""
        alone = self.sizes.n_blocks(self.tile) == 1 and self.sizes.reads_neighbours
        return self.sizes.problem.geometry.rank if alone and self.leaves_out_by_position else 0

    @cached_property
    def broadcasts_in_place(self) -> bool:
        """Whether a tile with vectors over N broadcasts elements of NCX if it reads data in place: f32, with a single
        tap, whose rows of all channels cause no conflict misses in L2."""
        sizes, tile = self.sizes, self.tile
        if tile.vector_axis is not DataAxis.N or tile.tile_rows or self.has_contiguous_vectors or not sizes.sums:
            return False
        one_tap = all(size.products == sizes.k for size in sizes.sums) and sizes.reads_neighbours
        return one_tap and sizes.problem.dtype == "f32" and self._rows_stay_in_l2

    @cached_property
    def may_pipeline(self) -> bool:
        """Whether tiles with vectors over positions that read their data in place may prefetch that of the next ones:
        of so many channels that a core's own prefetcher does not follow all their rows, and without output phases,
        which would read them again; L2 has room for the data of both, and for the filter; and there are products
        enough."""
        sizes, run = self.sizes, self.pipelined_tiles * self.tile.positions
        reads_rows = self.tile.vector_axis is DataAxis.M and self.has_contiguous_vectors and sizes.reads_neighbours
        has_phases = sizes.problem.gradient is Gradient.DATA and max(sizes.problem.geometry.strides) > 1
        if not reads_rows or self.masks_data or has_phases or not sizes.sums or sizes.k < FOLLOWED_ROWS:
            return False
        held = F32_BYTES * sizes.k * run * self.tile.rows
        fits = 2 * held <= self.machine.l2_blocks and self._rows_stay_in_l2
        fmas = sizes.sums[0].n * sizes.sums[0].products * run // self.machine.lanes
        return fits and self.filter_fits_half_l2 and leaves_time(fmas, sizes.k, -(-F32_BYTES * run // CACHE_LINE))

    @property
    def data_fits_l1(self) -> bool:
        """Whether what a tile with vectors over positions reads in place stays in L1."""
        held = F32_BYTES * self.sizes.k * self.tile.positions
        return self._meets_no_conflicts and held <= self.machine.l1_blocks

    @property
    def _meets_no_conflicts(self) -> bool:
        """Whether rows of positions of all channels may be read side by side without conflict misses in L1."""
        return self.sizes.k <= self.machine.rows_without_conflicts(self._row)

    @property
    def _rows_stay_in_l2(self) -> bool:
        """Whether rows of positions of all channels cause no conflict misses in L2."""
        return self.sizes.k <= self.machine.rows_in_l2(self._row)

    @property
    def _row(self) -> int:
        """Bytes of all positions of a channel, in NCX."""
        data, _ = self.sizes.problem.input_shapes
        return F32_BYTES * prod(data[2:])

    @property
    def pipelined_tiles(self) -> int:
        """The number of tiles along a row for which data is prefetched together, so that it has runs of `LEAST_RUN`."""
        return max(LEAST_RUN // (F32_BYTES * self.tile.positions), 1)

    @cached_property
    def masks_data(self) -> bool:
        """Whether data is read in place with its padding, by masked loads."""
        by_vectors = self.tile.vector_axis is DataAxis.M and not self.tile.has_channel_rows
        return by_vectors and masked.reads_in_place(self.machine, self.sizes)

    @cached_property
    def leaves_out_padding(self) -> bool:
        """Whether the data of a depthwise sum in NXC is read in place, and conditions leave out products with its
        padding (transforms/padding_elision.py). In 16 bits an element is converted each time it is loaded, so it must
        have few products (`FEW_PRODUCTS`). In f32 the forwards of MobileNetV2's and ConvNeXt's depthwise layers took
        0.72 of the time that they took with packed data, in the mean, from 0.53 to 1.14, and their data gradients 0.73,
        from 0.53 to 0.94 (an Intel Xeon with AMX)."""
        sizes, tile = self.sizes, self.tile
        geometry, gradient = sizes.problem.geometry, sizes.problem.gradient
        if tile.vector_axis is not DataAxis.GROUPS or not self.has_contiguous_vectors:
            return False
        if not (sizes.is_depthwise and sizes.is_product) or geometry.groups % tile.groups:
            return False
        each = prod(geometry.k) / (prod(geometry.strides) if gradient is Gradient.FORWARD else 1)
        return sizes.problem.dtype == "f32" or each <= FEW_PRODUCTS

    @cached_property
    def filter_in_place(self) -> bool:
        """Whether the filter is read in place: its N channels are contiguous, and few positions would use a panel."""
        if self.tile.vector_axis is DataAxis.K:
            return True
        problem, sizes = self.sizes.problem, self.sizes
        if self.pairs or self.tile.vector_axis is not DataAxis.N or not problem.filter_axes.endswith(sizes.n_axis):
            return False
        positions = problem.geometry.batch * max((prod(size.positions) for size in sizes.sums), default=0)
        fits = self.bytes * prod(problem.input_shapes[1]) <= self.machine.l2_blocks
        return positions < (FEW_POSITIONS if fits else FEW_POSITIONS_FAR) and filter_is_plain(
            problem, self.blocking(in_place=True)
        )

    @property
    def filter_fits_half_l2(self) -> bool:
        """Whether the filter fits half of L2, beside data."""
        return self.bytes * prod(self.sizes.problem.input_shapes[1]) <= self.machine.l2_blocks // 2
