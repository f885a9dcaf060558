"""Blocked summation: long sums of f32 are added up in blocks, whose sums are then added up.

Rounding errors grow with the root of a block's length (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.factors import largest_divisor, least_divisor

SUMMATION_BLOCK, SHORT_SUMMATION_BLOCK, FEW_CHANNELS = 288, 192, 4
"""So many products are added up one after the other at most. The second number is for results of at most FEW_CHANNELS
channels, which XLA adds up in short chains; any sum of more products than it has two blocks at least. Without blocks,
errors were up to 2.7 times XLA's, and up to 4.3 times for few channels (benchmarks/frameworks/jax_convolutions.py
--errors). With blocks of 1152, errors of single layers were up to 3.5 times PyTorch's; with these they are up to 1.97
times (benchmarks/frameworks/torch_errors.py), and 154 data gradients take 1.004 times as long in the mean (bench all
--only data, an AMD EPYC with Zen 5)."""


def summation_blocks(sizes: DataSizes, tile: DataTile, block_k: int, k_cache_blocks: int) -> int:
    """The number of blocks in which the products of a cache block of K are added up: as many as are needed, or a few
    more, so that each has as many whole K blocks. One where no such number is within four times what is needed.

    One for results of 16 bits, whose rounding is coarser, for vectors over K, whose lanes are chains of their own, and
    in tile registers, where bf16's own errors are larger than those of the sums.
    """
    if sizes.problem.output_dtype != "f32" or tile.vector_axis is DataAxis.K or tile.tile_rows:
        return 1
    longest = SHORT_SUMMATION_BLOCK if sizes.n <= FEW_CHANNELS else SUMMATION_BLOCK
    products = max((size.products for size in sizes.sums), default=1) // k_cache_blocks
    blocks, needed = -(-sizes.k // block_k) // k_cache_blocks, -(-products // longest)
    if products > SHORT_SUMMATION_BLOCK:
        needed = max(needed, 2)
    count = least_divisor(blocks, needed)
    return count if count <= 4 * needed else largest_divisor(blocks, needed)
