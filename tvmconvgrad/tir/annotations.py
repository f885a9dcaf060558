"""The marks that schedules put on loops and blocks, and what passes make of them."""

from __future__ import annotations

PREFETCH, PREFETCH_FAR = "pragma_prefetch_distance", "pragma_prefetch_far"
"""Mark a loop: vectors that are read in it are to be fetched so many elements ahead, into the L1 cache or into L2, see
compiler/pipeline.py."""

CONDITION = "tvmconvgrad.condition"
"""Marks what is done under a condition, which compiler/pipeline.py sets once memory is planned: for what is read under
one TVM finds no constant bound, and a task would allocate all of a stage."""

TRANSPOSE = "pragma_transpose"
"""Marks two loops that copy what lies along the outer one to where it lies along the inner one, see
tir/passes/transposition.py."""

LEAST_SIDE = 4
"""How many elements must lie along each of them: less are copied one by one."""

MOST_APART = 4
"""The greatest stride at which vectors are loaded, or stored, with what lies between their elements."""

MASK = "pragma_mask"
"""Marks a loop over a vector's lanes that adds products to a sum, some of zeros, see tir/passes/masking.py."""

PAIRS = "pragma_pairs"
"""Marks a loop over a vector's lanes, of which each adds two products to its sum, see tir/passes/pairs.py."""

NON_TEMPORAL = "pragma_non_temporal"
"""Marks a loop: vectors that are stored in it are written by non-temporal stores, see tir/passes/non_temporal.py."""
