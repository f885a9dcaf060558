"""How a filter gradient is split: its positions into cache blocks and splits, its channels into partitions.

A cache block is what stays in the cache while all of its products are summed. Splits and partitions are the parallel
work items, of which there should be enough for many cores: a split costs memory, since it has a filter of its own, and
a partition reads an operand once more, packed by itself or from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmconvgrad.machines.cpu import BF16_BYTES, CACHE_LINE, F32_BYTES
from tvmconvgrad.schedules.cpu.costs import ROOM
from tvmconvgrad.schedules.cpu.weights.access import CHUNK_IN_PLACE, LEAST_CHUNK, WeightsAccess
from tvmconvgrad.schedules.factors import divisors, largest_divisor, nearest_divisor
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.te.tensors import group_sizes

TASKS = 16
"""How many parallel work items a kernel should have at least: enough for many cores, few enough to stay large."""

PLACES = [(True, True), (True, False), (False, True), (False, False)]
"""Whether x, and y, may be packed before all work items, which takes memory for all of it."""

ANYWHERE = (True, True)
"""Both may."""

FEW_CHANNELS_FIT = 48
"""Of channels of which L1 has room for so many positions, a product packs cache blocks that stay there."""

RUN = 7
"""Positions of a row that LLVM unrolls, so that what is packed for them stays in registers."""


def _by_work_item(partitions: int, surplus: float = 1.0) -> float:
    """Cycles an element that each of so many partitions packs for itself, into the cache; cache block by cache block,
    which takes `surplus` times as many in all."""
    return partitions * (0.8 + 0.4 * (surplus - 1))


def _before(partitions: int) -> float:
    """Cycles an element that is packed before all work items, to memory, and read from there by so many partitions."""
    return 1.65 + 0.25 * partitions


def adds_far(access: WeightsAccess) -> bool:
    """Whether a work item's share of the filter, to which each cache block adds its tiles, lies beyond the L2 cache."""
    return F32_BYTES * prod(access.problem.filter_shape) >= TASKS * access.machine.l2


def sweeps_small_groups(access: WeightsAccess) -> bool:
    """Whether a tile is of one of many small groups: there is little to sum of what is packed for it, from memory, and
    no row of the filter displaces another in the L2 cache, so that a group's sums may be added to often."""
    problem = access.problem
    grouped = access.tile.groups == 1 and problem.geometry.groups >= TASKS and all(access.blocks)
    small = F32_BYTES * prod(problem.filter_shape) <= access.machine.l2
    return grouped and small and problem.data_format == "NXC"


def cache_block_size(access: WeightsAccess) -> int:
    """How many positions are a cache block: what is packed stays in L2, and what a tile reads of it in L1; of small
    groups or products of few channels all of it, or even in registers; what is read in place in L1, by whole cache
    lines if each is read once."""
    geometry = access.problem.geometry
    c_group, o_group = group_sizes(geometry)
    map_accesses = prod(s if k > 1 else 1 for s, k in zip(geometry.strides, geometry.k))
    if access.packs_to_registers:
        return RUN
    if sweeps_small_groups(access):
        return max(access.machine.l1 // (F32_BYTES * (c_group * map_accesses + o_group)), LEAST_CHUNK)
    if access.tile.groups > 1 and c_group * o_group > 1:
        return access.machine.l2 // 2 // (F32_BYTES * access.tile.groups * (c_group * map_accesses + o_group))
    if access.tile.groups > 1:
        return max(_depthwise_cache_block(access, map_accesses), LEAST_CHUNK)
    return _packed_cache_block(access) if any(access.blocks) else CHUNK_IN_PLACE


def _depthwise_cache_block(access: WeightsAccess, map_accesses: int) -> int:
    """Positions, of each of which `swept` ones of x are read, that L1 has room for."""
    geometry, machine, width = access.problem.geometry, access.machine, F32_BYTES * access.tile.groups
    if access.tile.taps != geometry.k:
        return access.l1_positions(access.tile.groups * map_accesses)
    # Each line is read once by these groups, and maybe by the next.
    limit = machine.l1 // 2 // (max(width, CACHE_LINE) * (map_accesses + 1))
    if width >= CACHE_LINE or map_accesses > 1:
        return limit
    # It is: there should be room for all rows, which lie so far apart that they share sets of the cache.
    rows = prod(geometry.k[:-1]) + 1
    return min(limit, 2 * machine.rows_apart(F32_BYTES * geometry.groups) // rows)


def _packed_cache_block(access: WeightsAccess) -> int:
    """Positions of which operands are packed, or one is and the other stays in L1 as it lies."""
    packed, in_place = 0, 0
    for channels, block in zip(group_sizes(access.problem.geometry), access.blocks):
        packed, in_place = (packed + channels, in_place) if block else (packed, in_place + channels)
    if not in_place and prod(access.problem.geometry.k) == 1 and access.l1_positions(packed) >= FEW_CHANNELS_FIT:
        return LEAST_CHUNK
    limit = 1024 if adds_far(access) else access.machine.l2 // 2 // (F32_BYTES * packed)
    limit = min(max(limit, 128), 1024)
    if access.problem.geometry.groups == 1:  # ResNeXt's conv5a_grouped took up to twice as long by shorter cache blocks
        limit = min(limit, _panels_in_l1(access))
    return min(limit, access.l1_positions(in_place)) if in_place else limit


def _panels_in_l1(access: WeightsAccess) -> int:
    """Positions of which L1 has room for what a tile reads: two FMAs of 512 bits in a cycle want more vectors than come
    from L2. It reads whole lines, a stride apart in x, between which sets of the cache are left unused. The fewer of a
    cache block's products meet data, the more positions it takes for as many of them to a sum."""
    geometry, tile = access.problem.geometry, access.tile
    apart = geometry.strides[-1] if geometry.k[-1] > 1 and tile.vector_axis == "c" else 1
    c, o = (max(size, min(block, access.machine.lanes)) for size, block in zip((tile.c, tile.o), access.blocks))
    met = access.met or 1.0  # without any products all is the same
    return max(int(access.machine.l1 / (F32_BYTES * (apart * c + o)) / met), LEAST_CHUNK)


@dataclass(frozen=True)
class Splitting:
    """Splits a tile's sums, in cache blocks of so many images and positions, into work items."""

    access: WeightsAccess
    cache_block: tuple[int, ...]
    blocks: tuple[int, int]
    """How many channels of x, and of y, are packed together; 0: none."""

    @property
    def cache_blocks(self) -> int:
        """How many cache blocks there are."""
        return prod(self.access.extents) // prod(self.cache_block)

    @property
    def parts(self) -> tuple[int, int, int]:
        """How many tiles the groups take, channels o and channels c."""
        geometry, tile = self.access.problem.geometry, self.access.tile
        c_group, o_group = group_sizes(geometry)
        return -(-geometry.groups // tile.groups), -(-o_group // tile.o), -(-c_group // tile.c)

    @property
    def split_k(self) -> int:
        """How many splits: they cost memory and its traffic, at most half of that of the operands.

        Where data is packed before all work items, partitions of channels cost nothing, and neither do partitions of
        small groups; where none is packed, they cost less than splits whose sums take a quarter of the operands' memory
        or more. Then they are better if there are enough, and room for what is packed.
        """
        problem = self.access.problem
        operands = sum(tensor_bytes(shape, problem.dtype) for shape in problem.input_shapes)
        limit = max(operands // (2 * F32_BYTES * self.access.sums), 1)
        split_k = nearest_divisor(self.cache_blocks, TASKS, limit)
        if sweeps_small_groups(self.access):
            return 1
        if any(self.blocks):
            partitions_are_free = "before" in self._packs(self._partitions(split_k, ANYWHERE), ANYWHERE)
        else:
            partitions_are_free = 4 * F32_BYTES * self.access.sums * split_k >= operands
        if (
            partitions_are_free
            and prod(self.parts) >= TASKS
            and self._has_room(1, self._partitions(1, ANYWHERE), ANYWHERE)
        ):
            return 1
        return split_k

    def partitions(self, split_k: int) -> list[int]:
        """Partitions of groups, of channels o and of channels c, that make enough work items together with the splits:
        those to which it takes least to bring the operands, in what room there is."""
        found = [(self._partitions(split_k, may), may) for may in PLACES]
        fitting = [each for each in found if self._has_room(split_k, *each)] or found[-1:]
        partitions, _ = min(fitting, key=lambda each: self._reading(*each))
        return partitions

    def packs(self, split_k: int, partitions: Sequence[int]) -> tuple[str, str]:
        """Where x, and y, are packed: what so many partitions would pack too often before all work items, if there is
        room."""
        fitting = [may for may in PLACES if self._has_room(split_k, partitions, may)] or PLACES[-1:]
        return self._packs(partitions, min(fitting, key=lambda may: self._reading(partitions, may)))

    def has_room(self, split_k: int, partitions: Sequence[int]) -> bool:
        """Whether there is a way to pack for which the workspace is no larger than the tensors."""
        return any(self._has_room(split_k, partitions, may) for may in PLACES)

    def _has_room(self, split_k: int, partitions: Sequence[int], may: tuple[bool, bool]) -> bool:
        """Whether what is packed before all work items, and what is added up, take no more memory than the tensors."""
        access, packs = self.access, self._packs(partitions, may)
        operands = zip(access.packed, self.blocks, packs)
        packed = sum(size for size, block, where in operands if block and where == "before")
        sums = 0 if access.writes_result and split_k == 1 else split_k * access.sums
        if access.finishes_by_work_item(split_k, partitions):
            sums //= prod(partitions)
        operand_bytes = BF16_BYTES if access.pairs else F32_BYTES
        return operand_bytes * packed + F32_BYTES * sums <= ROOM * access.problem.tensor_bytes

    def _partitions(self, split_k: int, may: tuple[bool, bool]) -> list[int]:
        """Partitions for operands that may be packed before all work items, or may not.

        Each partition of o reads all of x, and each of c all of y, so the larger one is better read less often. A
        partition that ends inside of a block packs all of it.
        """
        (groups, o_parts, c_parts), tile = self.parts, self.access.tile
        c_block, o_block = self.blocks
        g_partitions = largest_divisor(groups, TASKS // split_k)
        wanted = max(-(-(TASKS // split_k) // g_partitions), 1)
        pairs = [(o, c) for o in divisors(o_parts) for c in divisors(c_parts) if o <= wanted and c <= -(-wanted // o)]
        most = max(o * c for o, c in pairs)
        enough = [(o, c) for o, c in pairs if 3 * o * c >= 2 * most]

        def cost(pair: tuple[int, int]) -> tuple[bool, bool, float]:
            partitions = [g_partitions, *pair]
            o_partition, c_partition = o_parts // pair[0] * tile.o, c_parts // pair[1] * tile.c
            inside = bool((c_block and c_partition % c_block) or (o_block and o_partition % o_block))
            return not self._has_room(split_k, partitions, may), inside, self._reading(partitions, may)

        return [g_partitions, *min(enough, key=cost)]

    def _packs(self, partitions: Sequence[int], may: tuple[bool, bool]) -> tuple[str, str]:
        """Where operands that may be packed before all work items, or may not, are packed at least cost."""
        ways = zip(may, self._ways(partitions))
        x, y = ("before" if able and before < by_work_item else "work_item" for able, (by_work_item, before) in ways)
        return x, y

    def _reading(self, partitions: Sequence[int], may: tuple[bool, bool]) -> float:
        """Cycles to bring the operands to so many partitions."""
        each = [min(ways) if able else ways[0] for able, ways in zip(may, self._ways(partitions))]
        shapes = self.access.problem.x_shape, self.access.problem.y_shape
        return sum(cycles * prod(shape) for cycles, shape in zip(each, shapes))

    def _ways(self, partitions: Sequence[int]) -> list[tuple[float, float]]:
        """Cycles an element of x, and of y, packed by each partition and before all work items."""
        _, o_partitions, c_partitions = partitions
        return [
            (_by_work_item(o_partitions, self._surplus), _before(o_partitions)),
            (_by_work_item(c_partitions), _before(c_partitions)),
        ]

    @cached_property
    def _surplus(self) -> float:
        """How much more of x than there is all cache blocks pack, since neighbours read the same: from L1, where it
        goes to registers."""
        if self.access.packs_to_registers:
            return 1.0
        geometry = self.access.problem.geometry
        axes = zip(self.cache_block[1:], self.access.extents[1:], geometry.strides, geometry.k, geometry.dilations)
        read = prod(y // part * ((part - 1) * s + (k - 1) * d + 1) for part, y, s, k, d in axes)
        return float(read * self.access.multiples.image_halves / prod(geometry.x))
