"""Weights gradients on CPUs. Begin with rule.py.

In BLIS's words, with M the channels of x, N those of dy, and K the positions: a tile's c x o is the micro-tile
MR x NR (tiles.py has the candidates), a plan's c_block and o_block are the widths of packed panels, which are multiples
of it, and a cache block of positions is KC. MC and NC are the channels of a partition (partition.py). Unlike BLIS's, a
GEMM here has a long K, so work items also split K.

plan.py chooses all numbers. For that it asks access.py for what a tile reads and writes, and partition.py for cache
blocks and work items. rule.py also makes the loops.
"""
