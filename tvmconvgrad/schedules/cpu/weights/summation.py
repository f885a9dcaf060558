"""Blocked summation of weights gradients: the products of a cache block are added up in blocks, for the reason that
schedules/cpu/data/summation.py gives."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from tvmconvgrad.schedules.cpu.weights.access import WeightsAccess
from tvmconvgrad.schedules.factors import divisors

SUMMATION_BLOCK = 256
"""So many products of a tap are added up one after the other, about, where a cache block can be divided. Without such
blocks the errors of ResNeXt's conv5a_grouped and conv5b_grouped were 2.5 times XLA's
(benchmarks/frameworks/jax_convolutions.py --errors); with them both took as long as before (bench resnext_50 --only
filters, an AMD EPYC with Zen 4). With vectors over groups, too: otherwise the error of ConvNeXt's stage3_depthwise in
NCX was 2.7 times PyTorch's (benchmarks/frameworks/torch_errors.py)."""


def summation_blocks(access: WeightsAccess, cache_block: Sequence[int]) -> int:
    """The number of blocks in which a cache block's products are added up: a divisor of its images, or of its positions
    along an axis. As many as are needed, or up to four times as many; fewer where there are no such divisors.

    One for results of 16 bits, whose rounding is coarser, and in tile registers.
    """
    if access.problem.output_dtype != "f32" or access.tile.tile_rows:
        return 1
    products = prod(cache_block) * access.density * (2 if access.pairs else 1)
    needed = max(ceil(products / SUMMATION_BLOCK), 1)
    counts = [count for size in cache_block for count in divisors(size) if count <= 4 * needed]
    return min((count for count in counts if count >= needed), default=max(counts))
