"""The annotations that schedules set on loops and blocks, and which pass reads each."""

from __future__ import annotations

PREFETCH, PREFETCH_FAR = "pragma_prefetch_distance", "pragma_prefetch_far"
"""On a loop, with a number: what it reads is prefetched so many elements ahead, into L1 or into L2
(compiler/pipeline.py)."""

CONDITION = "tvmconvgrad.condition"
"""On a statement: it is executed only under a condition. compiler/pipeline.py makes it an `if` after memory is planned:
TVM finds no constant bound for what is read inside of an `if`, and would allocate a whole stage for each work item."""

TRANSPOSE = "pragma_transpose"
"""On the outer of two loops: they copy elements that are contiguous along the outer loop in the source, and along the
inner one in the copy (tir/passes/transposition.py)."""

LEAST_SIDE = 4
"""Each of these two loops must have at least so many steps; otherwise elements are copied one by one."""

MAX_STRIDE = 4
"""The greatest stride at which strided vectors are loaded, or stored, together with the elements between theirs."""

MASK = "pragma_mask"
"""On a loop over a vector's lanes: it adds products to a sum, and some lanes may be padding (tir/passes/masking.py)."""

PAIRS = "pragma_pairs"
"""On a loop over a vector's lanes: each lane adds two bf16 products to its sum (tir/passes/pairs.py)."""

TILES = "pragma_tiles"
"""On the loop over a block of M, with the rows of a tile register: the block is computed in AMX's tile registers
(tir/passes/tiles.py)."""

BIAS = "bias"
"""The name of the parameter that is added to results (schedules/transforms/epilogue.py): passes that move elements from
one place to another tell it from them."""

OUT = "out"
"""The name of the parameter that is the result (schedules/transforms/epilogue.py)."""

STAGED = "pragma_staged"
"""On a loop over work items, with the elements of a cache line: each one's results are staged, and then copied
(tir/passes/staging.py)."""

NON_TEMPORAL = "pragma_non_temporal"
"""On a loop: the vectors that it stores are written by non-temporal stores (tir/passes/non_temporal.py)."""
