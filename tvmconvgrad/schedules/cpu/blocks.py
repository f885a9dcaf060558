"""Schedule primitives that the CPU's rules share: cache blocks, layouts of what is written, loops of register tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IndexMap, Var

from tvmconvgrad.schedules.factors import largest_divisor
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.annotations import PAIRS, TRANSPOSE


@dataclass(frozen=True)
class LoopNest:
    """The loops of a sum, and the block of its register tile. The loops are those over parallel work items, the one
    inside of which a work item packs operands, and the outermost one over what a tile adds up."""

    tile: SBlockRV
    work_items: list[LoopRV]
    packing: LoopRV
    reduction: LoopRV


def split_cache_blocks(
    sch: Schedule, positions: Sequence[LoopRV], cache_block: Sequence[int], inner: Sequence[LoopRV] = ()
) -> LoopRV:
    """Split each loop over positions into cache blocks of the given sizes, and move the loops `inner` inside. Returns
    the loop over cache blocks."""
    parts = [sch.split(loop, [None, size]) for loop, size in zip(positions, cache_block)]
    sch.reorder(*(outer for outer, _ in parts), *(within for _, within in parts), *inner)
    return sch.fuse(*(outer for outer, _ in parts))


def lanes_last(sch: Schedule, block: SBlockRV, axis: int, width: int) -> None:
    """Store what a block writes with `width` neighbours along `axis` innermost, so that a vector is contiguous."""

    def layout(*index: Index) -> tuple[Index, ...]:
        place = axis % len(index)
        return (*index[:place], index[place] // width, *index[place + 1 :], index[place] % width)

    if width > 1:
        transform_written(sch, block, layout)


def transform_written(sch: Schedule, block: SBlockRV, layout: Callable[..., tuple[Index, ...]]) -> None:
    """Store what a block writes in another layout. The layout must be injective: TVM does not check it."""
    places = _index_map(len(sch.get(block).writes[0].region), layout)
    sch.transform_layout(block, ("write", 0), places, assume_injective_transform=True)


def store_filter(sch: Schedule, block: SBlockRV, rank: int, order: str, lanes: tuple[str, int]) -> None:
    """Store a filter that a block writes as (.., g, *k, c, o) in the given order of the axes "G", "X" (for *k), "C" and
    "O". `lanes` names the vectorised axis and how many of its elements are innermost."""
    axis, width = lanes

    def layout(*index: Index) -> tuple[Index, ...]:
        *outer, g = index[: -rank - 2]
        *k, c, o = index[-rank - 2 :]
        places = {"G": [g], "X": k, "C": [c], "O": [o]}
        (place,) = places[axis]
        places[axis] = [place // width]
        return (*outer, *(index for name in order for index in places[name]), place % width)

    transform_written(sch, block, layout)


def _index_map(arity: int, layout: Callable[..., tuple[Index, ...]]) -> IndexMap:
    indices = [Var(f"i{number}", "int64") for number in range(arity)]
    return IndexMap(indices, list(layout(*indices)), None)


def vectorize(sch: Schedule, loop: LoopRV) -> None:
    """Vectorise a loop of several steps."""
    if extent(sch, loop) > 1:
        sch.vectorize(loop)


def extent(sch: Schedule, loop: LoopRV) -> int:
    """A loop's constant extent."""
    return int(sch.get(loop).extent)


def vectorize_tile(sch: Schedule, tile: Sequence[LoopRV], lanes: int, pairs: bool = False) -> LoopRV | None:
    """Vectorise a register tile's last loop of more than one step, `lanes` at a time, and unroll the other ones. With
    `pairs` each lane adds up two bf16 products (tir/passes/pairs.py). Returns the loop over vectors if there are
    several.

    Vectors longer than a register are avoided: LLVM splits them, and spills those of, say, three registers. So are
    vectors of, say, 14 lanes.
    """
    wide = [loop for loop in tile if extent(sch, loop) > 1]
    if not wide:
        return None
    *outer, vector = wide
    registers = None
    if extent(sch, vector) > lanes:
        registers, vector = sch.split(vector, [None, gcd(extent(sch, vector), lanes)])
        outer.append(registers)
    for loop in outer:
        sch.unroll(loop)
    if pairs:
        sch.annotate(vector, PAIRS, 1)
    else:
        sch.vectorize(vector)
    return registers


def sum_split_k(sch: Schedule, loops: Sequence[LoopRV], inner: LoopRV, lanes: int) -> None:
    """Schedule the sum over splits of K, the last of the `loops`: in their order, with vectors along the loop `inner`,
    and in parallel over the others."""
    *elements, split = loops
    row, vector = sch.split(inner, [None, largest_divisor(extent(sch, inner), lanes)])
    rows = [loop for loop in elements if loop is not inner]
    sch.reorder(*rows, row, split, vector)
    vectorize_tile(sch, [vector], lanes)
    sch.parallel(sch.fuse(*rows, row))


def finish_pass(sch: Schedule, loops: Sequence[LoopRV], lanes: int) -> list[LoopRV]:
    """Schedule an elementwise pass over memory, with the innermost loop vectorised. Returns the loops over rows."""
    *rows, last = loops
    _, vector = sch.split(last, [None, largest_divisor(extent(sch, last), lanes)])
    vectorize(sch, vector)
    return rows


def transposing_pass(sch: Schedule, loops: Sequence[LoopRV], axis: int, width: int) -> list[LoopRV]:
    """Schedule an elementwise pass that transposes: it reads `width` neighbours along `axis` and writes along all axes
    behind it. Returns the loops over such blocks."""
    outer, inner = sch.split(loops[axis], [None, width])
    behind = sch.fuse(*loops[axis + 1 :])
    sch.reorder(*loops[:axis], outer, inner, behind)
    sch.annotate(inner, TRANSPOSE, 1)
    return [*loops[:axis], outer]
