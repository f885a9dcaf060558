"""What moving data costs one core: the constants that the CPU rules' cost models share.

The models rank register tiles and rules; they do not predict times. Costs of packing and writing are in cycles of one
core for each f32 element. Costs of operands are in FMAs: how much longer an FMA takes because its operand is loaded.
Where a text tells of layers, that is what changed when the constant was introduced. Where it tells of half and twice,
here and in other files, it says how many of 154 sums of all suites get another program with such a value, and how long
these then take beside today's: `python benchmarks/constants.py FILE:NAME --most 6`, on one thread of an Intel Xeon with
AMX, in f32; for Winograd's algorithm with `--target "llvm -mcpu=native -algorithm=auto" --most 4`. Other programs ran
at times: some percent, and more where a single sum changes, may be noise.
"""

from __future__ import annotations

from tvmconvgrad.spec import Problem

PACKING = 0.7
"""To pack data in whole vectors: about as long as reading it from memory takes. With half of it 8 sums change, and take
1.05 times as long; with twice, 11 and 1.27 (benchmarks/constants.py)."""

BORDERED = 1.0
"""To pack rows of positions that include padding, or are converted. With half of it 4 sums change, and take 1.05 times
as long; with twice, 1 and 1.22 (benchmarks/constants.py)."""

TRANSPOSING = 1.5
"""To pack data by transposing it in registers. With half of it 7 sums change, and take 1.37 times as long; with twice,
6 and 1.20 (benchmarks/constants.py)."""

PACKING_POSITIONS, WRITING_POSITIONS = 0.45, 0.25
"""To transpose between NCX and a tile with vectors over channels: data that is packed, and results, beside their
`WRITE_BACK`, in blocks whose shorter side fills a vector. 13 data gradients of 1x1 layers in NCX and f32, made to use
those vectors, took 0.25 to 0.7 cycles for each element of data and result beside their products (an Intel Xeon with
AMX). By AMX's tile registers 27 forwards in NCX took 0.1 cycles for each element of data, and 0.5 for each of the
result, longer than in NXC, where data of half of them is read in place. Of bf16 pairs 235 data gradients and forwards
in NCX take vectors over channels, or over positions, by these numbers: 1.014 times as long as the faster of both, in
the mean; with `TRANSPOSING` in their place 1.021 times (an AMD EPYC with Zen 5)."""

CUT_LINES = 0.03
"""To write results in NCX from tiles whose positions end within a cache line, which is then written in two parts.
Without it, tiles of 8 positions were chosen in place of 16 for MobileNetV2's and EfficientNet's first forwards in NCX,
which took 1.4 times as long (an Intel Xeon with AMX)."""

ADDING_CACHE_BLOCKS = 0.35
"""To add one cache block of K to a scratch accumulator. With 0.25 U-Net's down2_2 in NCX took K in 8, and 1.05 times as
long; with 0.5 DeepLab's aspp_dilated18 took K in one, and 1.1 times as long (an Intel Xeon with AMX)."""

GROUPING, REGROUPING = 1.0, 1.7
"""To pack groups of several channels, which are not contiguous: in NXC, and in NCX, where they are also transposed.
With lower costs ResNeXt's conv4a_grouped in NCX took the vectors over groups, and 1.6 times as long."""

WRITE_BACK = 0.5
"""To write results in whole vectors, line after line. With half of it 2 sums change, and take 1.13 times as long; with
twice, 1 and 1.03 (benchmarks/constants.py)."""

NON_TEMPORAL = 0.3
"""To write them by non-temporal stores. With those stores MobileNet-V2's depthwise data gradients took 0.4 to 0.8 of
the time (an AMD EPYC)."""

SCATTERING = 3.0
"""To write against the memory's order, or cache lines in parts. With half of it 2 sums change, and take 0.98 times as
long; with twice, 1 and 1.13 (benchmarks/constants.py)."""

STRIDED_STORES = 3.3
"""To transpose results and write them a stride apart, by masked stores. With those stores 3D U-Net's down3_1 took 1.0
instead of 2.0 ms. With half of it 1 sum changes, and takes 1.19 times as long; with twice, 4 and 1.25
(benchmarks/constants.py)."""

DISPERSING = 3.5
"""To write vectors each of whose lanes goes to another cache line. With half of it 4 sums change, and take 1.63 times
as long; twice changes no sum (benchmarks/constants.py)."""

ADDING_LANES = 0.51
"""To add up the lanes of a vector of sums, for each lane. With half of it 2 sums change, and take 1.12 times as long;
twice changes no sum (benchmarks/constants.py)."""

PANELS, IN_PLACE = (0.15, 0.35), (0.35, 0.35)
FAR_PANEL = 0.7
ALONG_POSITIONS, FAR_CHANNELS, PREFETCHED, ALONE = (0.15, 0.7), (0.15, 2.5), (0.15, 0.35), (0.15, 1.3)
K_VECTORS, K_VECTORS_FAR = 1.0, 1.6
"""What loading an operand costs, in FMAs: the scalar of a row of the register tile, and the vector of a column.

PANELS: from a panel in L2. FAR_PANEL: the vector, from a panel that is too large for L2 and cannot be split along K.
IN_PLACE: data that is read where it lies, from L2 or memory. ALONG_POSITIONS: vectors over positions, which cross cache
lines; FAR_CHANNELS: the same, read in place, where channels lie far apart; PREFETCHED: the same, prefetched while the
tile before is summed; ALONE: the same, of depthwise layers, where a vector serves one product only. K_VECTORS: vectors
over K, where both operands are vectors; K_VECTORS_FAR: the same, if the filter does not fit L2. Vectors that cross no
cache line cost half. Sums that change with half and with twice, and their times beside today's: PANELS 13, 1.02 and 19,
1.17; IN_PLACE 8, 0.99 and 9, 1.11; FAR_PANEL 1, 1.04 and 1, 0.97; ALONG_POSITIONS 5, 0.98 and 6, 1.03; FAR_CHANNELS 1,
1.01 and 2, 0.88; ALONE 0 and 0; K_VECTORS 0 and 0; K_VECTORS_FAR 1, 1.32 and 0 (benchmarks/constants.py)."""

FROM_L2 = 0.7
"""What tiles get of the bytes that L2 delivers in a cycle (`CpuMachine.l2_bytes_per_cycle`) if they read data in place
that does not fit L1. Tiles of 64 x 4 and 112 x 2 and 3 positions and channels made 27 to 30 of 40 bytes in 1x1 layers
of ResNet-50, MobileNetV2 and ConvNeXt in NCX (an AMD EPYC with Zen 5)."""

BROADCASTING = 0.3
"""What a row's operand costs besides, in FMAs, if broadcasting it takes an instruction of its own: on CPUs without
AVX-512, and on AArch64 if an iteration has a single step along K, where LLVM broadcasts some. For `x86-64-v3`, with
half of it 18 sums change, and take 0.94 times as long; with twice, 20 and 0.99 (benchmarks/constants.py)."""

SHARED = 3
"""A call counts on so many cores' shares of the last-level cache, since other cores leave some of theirs. With half of
it 1 sum changes, and takes 0.83 times as long; with twice, 1 and 0.93 (benchmarks/constants.py)."""

STARTING = 100
"""Cycles to start a work item; counted since that chose faster tiles for small layers (MobileNet's block2_project 1.4
times as fast without AVX-512, together with two other changes)."""

ROOM = 0.98
"""The workspace that a kernel may plan, as a share of its tensors' bytes. It is below 1 since packed blocks have gaps
between them (cpu/packing/data.py)."""

BEST_TILES = 8
"""A search may choose from so many of the cheapest tiles."""


def workspace_room(problem: Problem) -> float:
    """Bytes of workspace that a kernel may plan: about its tensors' (`ROOM`)."""
    return ROOM * problem.tensor_bytes
