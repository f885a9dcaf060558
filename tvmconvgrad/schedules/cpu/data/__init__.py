"""Data gradients and forward convolutions on CPUs. Begin with rule.py.

In BLIS's words, with C the result, A the data and B the filter: M block x N block is the micro-tile MR x NR (tiles.py
has the candidates), a cache block of K is KC, and a panel is a packed micro-panel of B, KC x NR, in L1. A partition's
data is the block of A, MC x KC, in L2 (positions.py). N is partitioned only for work items: there is no NC.

plan.py chooses all numbers. For that it asks sizes.py for the extents, access.py for what a tile reads and writes (how
operands are read is in operands.py, how results are written in results.py), and partition.py for the work items.
nest.py and epilogue.py make the loops; summation.py says into how many blocks a long sum is split.
"""
