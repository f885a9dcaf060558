"""What moving data costs a core, in cycles an element: packing an operand, writing a result; and reading operands."""

PACKING = 0.7
"""To pack data in whole vectors: about what memory takes."""

BORDERED = 1.0
"""To pack rows of positions of which some are pads."""

TRANSPOSING = 1.5
"""To pack it against the memory's order."""

GROUPING, REGROUPING = 1.0, 1.7
"""To pack groups of several channels, which lie apart; and to do so against the memory's order."""

PLACING = 0.5
"""To write results in whole vectors, line after line."""

STREAMING = 0.3
"""To write them by non-temporal stores."""

SCATTERING = 3.0
"""To write them against the memory's order, or lines in parts."""

SPREADING = 3.3
"""To transpose results and write them a stride apart, by masked stores."""

DISPERSING = 3.5
"""To write vectors of which each lane goes to a line of its own."""

ADDING_LANES = 0.51
"""To add up the lanes of a sum, for each."""

PANELS, IN_PLACE = (0.15, 0.35), (0.35, 0.35)
FAR_PANEL = 0.7
ALONG_POSITIONS, APART, ALONE = (0.15, 0.7), (0.15, 2.5), (0.15, 1.3)
SUMMED_LANES, SUMMED_LANES_FAR = 1.0, 1.6
"""What a row's and a column's operand costs, as parts of an FMA.

Panels come from the L2 cache, or from beyond it where they are too large and cannot be used in parts; data read in
place comes from there, too, or from memory; vectors over positions cross cache lines, lie far apart where they are read
in place, and each serves one product only where a channel is alone in its group; and with lanes that are summed both
operands are whole vectors, from the L2 cache if the filter fits it; those that cross no cache line cost half.
"""

L2_BYTES = 40
"""Bytes of a panel that come from the L2 cache in a cycle: a tile of few positions reads more."""

BROADCASTING = 0.3
"""What it costs besides to spread a row's operand over the lanes, where that takes an instruction of its own."""

TRAFFIC = 0.1
"""Cycles that a byte from memory takes."""

SHARED = 3
"""How many cores' parts of the last-level cache a call may count on: others leave some."""

STARTING = 100
"""Cycles that it takes to start a work item."""

ROOM = 0.98
"""How much of the tensors' bytes a kernel may plan to have as workspace: packed blocks lie a little apart."""

BEST_TILES = 8
"""How many of the cheapest tiles a search may choose from."""
