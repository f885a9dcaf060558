"""How a weights gradient is split: positions (K) into cache blocks and splits of K, channels (M, N) and groups into
partitions. A split of K with a partition is a work item.

A cache block is a block of positions that stays in the cache while all of its products are summed. There should be
enough work items for many cores. But each split of K needs a filter of its own for its partial sums, and each partition
reads an operand once more, which it packs for itself or reads from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import BF16_BYTES, CACHE_LINE, F32_BYTES, PAGE_BYTES
from tvmconvgrad.schedules.cpu.costs import workspace_room
from tvmconvgrad.schedules.cpu.packing import Packs
from tvmconvgrad.schedules.cpu.weights import tile_registers
from tvmconvgrad.schedules.cpu.weights.access import CACHE_BLOCK_IN_PLACE, LEAST_CACHE_BLOCK, WeightsAccess, WeightsAxis
from tvmconvgrad.schedules.factors import divisors, largest_divisor, nearest_divisor
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.tensors import group_sizes

WORK_ITEMS = 16
"""The least number of parallel work items that a kernel should have: enough for many cores, and few enough to stay
large. With half of it 46 sums change, and take 0.94 times as long; with twice, 46 and 1.02
(benchmarks/constants.py)."""

PLACES = [(True, True), (True, False), (False, True), (False, False)]
"""All pairs: whether x, and whether y, may be packed before all work items, which takes workspace for the whole
operand."""

ANYWHERE = (True, True)
"""Both operands may."""

FEW_CHANNELS_FIT = 48
"""A matrix product whose packed channels fit L1 at so many positions packs short cache blocks, which stay in L1. In f16
and bf16 seven kernels became 1.12 to 1.28 times as fast in the mean."""

RUN = 7
"""A cache block that is packed to registers has so many positions: LLVM unrolls the loop over them. Half and twice
change no sum (benchmarks/constants.py)."""


PACKING_HERE, PACKING_SHARED = 0.8, 0.4
"""Cycles for each element that a work item packs for itself, and for each that its neighbour packs, too. Sums that
change with half and with twice, and their times beside today's: HERE 22, 0.99 and 13, 1.05; SHARED 4, 1.01 and 4, 0.97
(benchmarks/constants.py, an AMD EPYC with Zen 4)."""

PACKING_BEFORE, READING_PACKED = 1.65, 0.25
"""Cycles for each element that is packed before all work items, to memory, and for each that a partition reads from
there. Sums that change with half and with twice, and their times: BEFORE 14, 1.04 and 11, 0.99; READING 4, 0.98 and 16,
1.02 (likewise)."""

LEAST_PACKED, MOST_PACKED = 128, 1024
"""Positions of a cache block whose operands are both packed, unless its panels are to fit L1. With half of LEAST 5 sums
change, and take as long; twice changes none. With MOST only ResNeXt's conv4a_grouped changes, in NCX: with half it took
1.03 times as long, with twice 0.82 (likewise)."""


ROWS_TOGETHER = 128
"""The most positions of a cache block of 1x1 layers in NCX, whose rows are read or copied in runs as long as that. With
32 MobileNetV2's block1_project and block2_expand took 1.27 and 1.19 times as long; with 256 ResNet-50's res2a_branch2a
took 1.25 times as long (an AMD EPYC with Zen 5)."""


def _by_work_item(partitions: int, surplus: float = 1.0) -> float:
    """Cycles for each element of an operand that so many partitions each pack for themselves. By cache blocks,
    `surplus` times the elements are packed, since neighbours share some."""
    return partitions * (PACKING_HERE + PACKING_SHARED * (surplus - 1))


def _before(partitions: int) -> float:
    """Cycles for each element of an operand that is packed before all work items and read by so many partitions."""
    return PACKING_BEFORE + READING_PACKED * partitions


def adds_far(access: WeightsAccess) -> bool:
    """Whether a work item's share of the filter, to which each cache block adds its tiles, is too large for L2, if
    there are `WORK_ITEMS` work items."""
    return F32_BYTES * prod(access.problem.filter_shape) >= WORK_ITEMS * access.machine.l2_blocks


def has_small_groups(access: WeightsAccess) -> bool:
    """Whether the tile is of one of many small groups, in NXC with both operands packed. A group then has few products
    for what it packs, and the filter fits L2, so adding to a group's sums often is cheap."""
    problem = access.problem
    grouped = access.tile.groups == 1 and problem.geometry.groups >= WORK_ITEMS and all(access.blocks)
    small = F32_BYTES * prod(problem.filter_shape) <= access.machine.l2
    return grouped and small and problem.data_format == "NXC"


def cache_block_size(access: WeightsAccess) -> int:
    """The number of positions of a cache block. Packed operands should stay in L2, and what one tile reads of them in
    L1; those of small groups, or of matrix products with few channels, in L1 altogether; and those of 16-bit depthwise
    layers in registers. What is read in place should stay in L1."""
    geometry = access.problem.geometry
    c_group, o_group = group_sizes(geometry)
    positions_read = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
    if access.tile.tile_rows:
        return tile_registers.CACHE_BLOCK if max(access.tile.taps) == 1 else tile_registers.CACHE_BLOCK_OF_TAPS
    if access.packs_to_registers:
        return RUN
    if has_small_groups(access):
        return max(access.machine.l1_blocks // (F32_BYTES * (c_group * positions_read + o_group)), LEAST_CACHE_BLOCK)
    if access.tile.groups > 1 and c_group * o_group > 1:
        return access.machine.l2_blocks // 2 // (F32_BYTES * access.tile.groups * (c_group * positions_read + o_group))
    if access.tile.groups > 1:
        return max(_depthwise_cache_block(access, positions_read), LEAST_CACHE_BLOCK)
    return _packed_cache_block(access) if any(access.blocks) else CACHE_BLOCK_IN_PLACE


def _depthwise_cache_block(access: WeightsAccess, positions_read: int) -> int:
    """The number of positions of a depthwise layer that fit L1, if each reads `positions_read` positions of x."""
    geometry, machine, width = access.problem.geometry, access.machine, F32_BYTES * access.tile.groups
    if access.tile.taps != geometry.k:
        return access.l1_positions(access.tile.groups * positions_read)
    # Each cache line is read once by these groups, and the rest of it maybe by the next groups.
    limit = machine.l1_blocks // 2 // (max(width, CACHE_LINE) * (positions_read + 1))
    if not any(access.blocks):  # a pass over neighbouring groups then finds in L2 what the core itself has fetched
        followed = machine.followed_pages * PAGE_BYTES
        limit = min(limit, followed // (F32_BYTES * geometry.groups * (positions_read + 1)))
    if width >= CACHE_LINE or positions_read > 1:
        return limit
    # Here it is read again: L1 needs room for all rows, which may lie so far apart that they share sets.
    rows = prod(geometry.k[:-1]) + 1
    return min(limit, 2 * machine.rows_without_conflicts(F32_BYTES * geometry.groups) // rows)


def _packed_cache_block(access: WeightsAccess) -> int:
    """The number of positions of a cache block with both operands packed, or with one packed and the other in L1, or
    read by rows of NCX."""
    geometry, packed, in_place = access.problem.geometry, 0, 0
    for channels, block in zip(group_sizes(geometry), access.blocks):
        near = block or access.broadcasts_in_place
        packed, in_place = (packed + channels, in_place) if near else (packed, in_place + channels)
    if access.problem.data_format == "NCX" and geometry.groups == prod(geometry.k) == 1:
        limit, fitting = min(ROWS_TOGETHER, _panels_in_l1(access)), access.l1_positions(packed)
        return min(limit, fitting) if fitting >= 2 * LEAST_CACHE_BLOCK else limit
    if not in_place and prod(geometry.k) == 1 and access.l1_positions(packed) >= FEW_CHANNELS_FIT:
        return LEAST_CACHE_BLOCK
    limit = MOST_PACKED if adds_far(access) else access.machine.l2_blocks // 2 // (F32_BYTES * packed)
    limit = min(max(limit, LEAST_PACKED), MOST_PACKED)
    if geometry.groups == 1:  # ResNeXt's conv5a_grouped took up to twice as long by shorter cache blocks
        limit = min(limit, _panels_in_l1(access))
    return min(limit, access.l1_positions(in_place)) if in_place else limit


def _panels_in_l1(access: WeightsAccess) -> int:
    """The number of positions for which L1 holds what a tile reads: two 512-bit FMAs a cycle need more vectors than L2
    delivers. A strided tile uses only every stride-th set of L1. If few of the products read data and not padding, a
    cache block takes more positions, so that each sum still gets as many products."""
    geometry, tile = access.problem.geometry, access.tile
    stride = geometry.strides[-1] if geometry.k[-1] > 1 and tile.vector_axis is WeightsAxis.C else 1
    c, o = (max(size, min(block, access.machine.lanes)) for size, block in zip((tile.c, tile.o), access.blocks))
    density = access.density or 1.0  # without any products the size does not matter
    return max(int(access.machine.l1_blocks / (F32_BYTES * (stride * c + o)) / density), LEAST_CACHE_BLOCK)


@dataclass(frozen=True)
class WeightsPartitioning:
    """Splits a tile's sums into work items; `cache_block` is its images, and its positions along each axis."""

    access: WeightsAccess
    cache_block: tuple[int, ...]
    blocks: tuple[int, int]
    """How many channels of x, and of y, are packed together; 0: the operand is read in place."""

    @property
    def cache_blocks(self) -> int:
        """The number of cache blocks."""
        return prod(self.access.extents) // prod(self.cache_block)

    @property
    def tile_counts(self) -> tuple[int, int, int]:
        """The number of tiles along groups, channels o and channels c."""
        geometry, tile = self.access.problem.geometry, self.access.tile
        c_group, o_group = group_sizes(geometry)
        return -(-geometry.groups // tile.groups), -(-o_group // tile.o), -(-c_group // tile.c)

    @property
    def split_k(self) -> int:
        """The number of splits of K. Their partial sums take at most half of the operands' memory.

        There is no split-K if partitions of channels and groups are cheaper, give enough work items, and leave room for
        what is packed. They are cheaper where an operand is packed before all work items, where groups are small, and
        where nothing is packed and partial sums would take a quarter of the operands' memory or more.
        """
        problem = self.access.problem
        operands = sum(tensor_bytes(shape, problem.dtype) for shape in problem.input_shapes)
        limit = max(operands // (2 * F32_BYTES * self.access.sums), 1)
        split_k = nearest_divisor(self.cache_blocks, WORK_ITEMS, limit)
        if has_small_groups(self.access):
            return 1
        if any(self.blocks):
            partitions_are_free = Packs.BEFORE in self._packs(self._partitions(split_k, ANYWHERE), ANYWHERE)
        else:
            partitions_are_free = 4 * F32_BYTES * self.access.sums * split_k >= operands
        if (
            partitions_are_free
            and prod(self.tile_counts) >= WORK_ITEMS
            and self._has_room(1, self._partitions(1, ANYWHERE), ANYWHERE)
        ):
            return 1
        return split_k

    def partitions(self, split_k: int) -> list[int]:
        """The numbers of partitions of groups, of channels o and of channels c that give enough work items together
        with the splits: of those whose workspace has room, the ones for which reading the operands costs least."""
        found = [(self._partitions(split_k, may), may) for may in PLACES]
        fitting = [each for each in found if self._has_room(split_k, *each)] or found[-1:]
        partitions, _ = min(fitting, key=lambda each: self._reading(*each))
        return partitions

    def packs(self, split_k: int, partitions: Sequence[int]) -> tuple[Packs, Packs]:
        """Where x, and y, are packed: before all work items if so many partitions would pack it too often, and if there
        is room; otherwise by each work item."""
        fitting = [may for may in PLACES if self._has_room(split_k, partitions, may)] or PLACES[-1:]
        return self._packs(partitions, min(fitting, key=lambda may: self._reading(partitions, may)))

    def has_room(self, split_k: int, partitions: Sequence[int]) -> bool:
        """Whether some way to pack needs no larger workspace than the tensors have."""
        return any(self._has_room(split_k, partitions, may) for may in PLACES)

    def _has_room(self, split_k: int, partitions: Sequence[int], may: tuple[bool, bool]) -> bool:
        """Whether what is packed before all work items, and all partial sums, take no more memory than the tensors."""
        access, packs = self.access, self._packs(partitions, may)
        operands = zip(access.packed, self.blocks, packs)
        packed = sum(size for size, block, where in operands if block and where is Packs.BEFORE)
        sums = 0 if access.writes_result and split_k == 1 else split_k * access.sums
        if access.finishes_by_work_item(split_k, partitions):
            sums //= prod(partitions)
        operand_bytes = BF16_BYTES if access.pairs else F32_BYTES
        return operand_bytes * packed + F32_BYTES * sums <= workspace_room(access.problem)

    def _partitions(self, split_k: int, may: tuple[bool, bool]) -> list[int]:
        """The partitions of groups, o and c if x, and y, `may` be packed before all work items, or may not.

        Each partition of o reads all of x, and each of c all of y, so the larger operand should be read less often. A
        partition that ends inside of a packed block packs the whole block, so that is avoided.
        """
        (groups, o_parts, c_parts), tile = self.tile_counts, self.access.tile
        c_block, o_block = self.blocks
        g_partitions = largest_divisor(groups, WORK_ITEMS // split_k)
        wanted = max(-(-(WORK_ITEMS // split_k) // g_partitions), 1)
        pairs = [(o, c) for o in divisors(o_parts) for c in divisors(c_parts) if o <= wanted and c <= -(-wanted // o)]
        most = max(o * c for o, c in pairs)
        enough = [(o, c) for o, c in pairs if 3 * o * c >= 2 * most]  # two thirds are enough: the cost has a choice

        def cost(pair: tuple[int, int]) -> tuple[bool, bool, float]:
            partitions = [g_partitions, *pair]
            o_partition, c_partition = o_parts // pair[0] * tile.o, c_parts // pair[1] * tile.c
            inside = bool((c_block and c_partition % c_block) or (o_block and o_partition % o_block))
            return not self._has_room(split_k, partitions, may), inside, self._reading(partitions, may)

        return [g_partitions, *min(enough, key=cost)]

    def _packs(self, partitions: Sequence[int], may: tuple[bool, bool]) -> tuple[Packs, Packs]:
        """The cheapest place to pack each operand, if it `may` be packed before all work items, or may not."""
        ways = zip(may, self._ways(partitions))
        x, y = (
            Packs.BEFORE if able and before < by_work_item else Packs.WORK_ITEM for able, (by_work_item, before) in ways
        )
        return x, y

    def _reading(self, partitions: Sequence[int], may: tuple[bool, bool]) -> float:
        """Cycles to pack and read the operands with so many partitions."""
        each = [min(ways) if able else ways[0] for able, ways in zip(may, self._ways(partitions))]
        shapes = self.access.problem.x_shape, self.access.problem.y_shape
        return sum(cycles * prod(shape) for cycles, shape in zip(each, shapes))

    def _ways(self, partitions: Sequence[int]) -> list[tuple[float, float]]:
        """For x, and for y: cycles for each element if every partition packs it, and if it is packed before."""
        _, o_partitions, c_partitions = partitions
        transposing = tile_registers.transposing(self.access, c_partitions)
        return [
            (
                _by_work_item(o_partitions, self.surplus) + o_partitions * transposing,
                _before(o_partitions) + tile_registers.transposing(self.access),
            ),
            (_by_work_item(c_partitions), _before(c_partitions)),
        ]

    @cached_property
    def surplus(self) -> float:
        """What all cache blocks pack of x, as a multiple of x: neighbouring ones read the same elements. 1 if it is
        packed to registers, since it then comes from L1."""
        if self.access.packs_to_registers:
            return 1.0
        geometry = self.access.problem.geometry
        axes = zip(self.cache_block[1:], self.access.extents[1:], geometry.strides, geometry.k, geometry.dilations)
        read = prod(y // part * ((part - 1) * s + (k - 1) * d + 1) for part, y, s, k, d in axes)
        return float(read * self.access.blocking.image_halves / prod(geometry.x))
