"""The annotations that schedules set on loops and statements, and what each asks for."""

from __future__ import annotations

PREFETCH, PREFETCH_FAR = "pragma_prefetch_distance", "pragma_prefetch_far"
"""On a loop, with a number: what it reads is prefetched so many elements ahead, into L1 or into L2
(tir/passes/prefetch.py)."""

PREFETCH_READS = "prefetch_reads"
"""On a loop: each step prefetches what lies ahead of what the first tile inside of it reads."""

PREFETCH_EACH = "prefetch_each"
"""On a loop of that tile, with a number: its last so many steps read elements that no other step does, and each
is prefetched. Of loops without this annotation one step is."""

PREFETCH_LINE = "prefetch_line"
"""On a loop along a row that a tile reads or writes, with the number of steps in one cache line."""

PIPELINED = "pipelined"
"""On a loop: each iteration prefetches what the next one reads in place
(schedules/transforms/software_pipelining.py)."""

CONDITION = "tvmconvgrad.condition"
"""On a statement: it is executed only under a condition. That becomes an `if` after memory is planned
(tir/passes/conditions.py): TVM finds no constant bound for what is read inside of an `if`, and would allocate a whole
stage for each work item."""

TRANSPOSE = "pragma_transpose"
"""On the outer of two loops: they copy elements that are contiguous along the outer loop in the source, and along the
inner one in the copy (tir/passes/transposition/loops.py). With a number above 1 the loops of so many steps are one."""

MASK = "pragma_mask"
"""On a loop over a vector's lanes: it adds products to a sum, and some lanes may be padding (tir/passes/masking.py)."""

PEEL = "pragma_peel"
"""On a loop: its first and last iteration stand apart (tir/passes/peeling.py)."""

PAIRS = "pragma_pairs"
"""On a loop over a vector's lanes: each lane adds two bf16 products to its sum (tir/passes/pairs.py)."""

TILES = "pragma_tiles"
"""On the loop over a block of M, with the rows of a tile register: the block is computed in AMX's tile registers
(tir/passes/tiles.py)."""

STAGED = "pragma_staged"
"""On a loop over work items, with the elements of a cache line: each one's results are staged, and then copied
(tir/passes/staging.py)."""

NON_TEMPORAL = "pragma_non_temporal"
"""On a loop: the vectors that it stores are written by non-temporal stores (tir/passes/non_temporal.py)."""
