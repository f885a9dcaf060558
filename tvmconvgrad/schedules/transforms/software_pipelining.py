"""Rewrites of a scheduled program: software pipelining. While one iteration sums, the next one's data is prefetched.

    for i: pack(i); for s: sum(i, s)
    ->
    for i: pack(i); for s: prefetch(part s of what pack(i + 1) reads); sum(i, s)

An iteration packs what its tiles read, then sums. Packing waits for memory, which is idle while products are summed. So
the steps of the sum prefetch into L2 what the next iteration will pack. The prefetches go into a loop of the sum that
has about as many steps as there are runs of lines; if a step would prefetch many lines, the next loop is split, and
each part prefetches a few. Sums that read their data in place would wait likewise; a loop with the annotation
`PIPELINED` prefetches what its next iteration reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import ceil, prod
from operator import mul
from typing import TypeVar

from tvm import DataType, tirx
from tvm.ir import IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.machines.cpu import CACHE_LINE
from tvmconvgrad.schedules.factors import largest_divisor, least_divisor
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.annotations import PIPELINED, TILES
from tvmconvgrad.tir.passes.prefetch import prefetch
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body

FMAS_OF_LINE, FMAS_OF_RUN = 6, 14
"""There must be at least so many FMAs for each prefetched cache line, and for each run of lines, whose address is
computed. So 9.5 for a line in runs of four lines: with 10 instead of 20 MobileNetV2's block2_expand and conv1 (data,
NCX) became 1.27 and 1.20 times as fast, and DCGAN's draw1 (forward, NCX) 1.44 times; with 4 block2b_depthwise took 1.25
times as long. And 20 for a line alone: with 10 draw1 (forward, NXC) took 1.25 times as long (an AMD EPYC with Zen
5)."""

AT_ONCE, LEAST_FMAS = 8, 48
"""A step prefetches at most about `AT_ONCE` lines: if it would be more, the loop inside of it is split into parts,
which have at least `LEAST_FMAS` FMAs each. With 16 lines ResNet-50's res2a_branch1 (data, NCX), which is read in place,
took 1.2 times as long (an AMD EPYC with Zen 5)."""

MOST_LINES = 8
"""Runs have at most so many cache lines. With 4, where a run of 7 lines is 7 runs, four layers that were timed took as
long (an AMD EPYC with Zen 5)."""

PRODUCTS_IN_TILES = 256
"""In tile registers 16 x 16 x 32 products take 16 cycles, in which 32 FMAs start."""

Statement = TypeVar("Statement", bound=tirx.Stmt)


def pipeline_packing(module: IRModule, packed: Collection[str]) -> IRModule:
    """`module`, in which sums prefetch what the next iteration packs by blocks of these names."""
    around = nodes(module, tirx.For)

    def pipelined(statement: tirx.SeqStmt) -> tirx.SeqStmt:
        packs = [each for each in statement.seq if len(_names(each)) == 1 and _names(each)[0] in packed]
        for runs in [_packed_next(pack, around) for pack in packs]:
            sums = [_loops(each) for each in statement.seq if _has_sum(each)]
            if runs is not None and sums:
                statement = _pipelined(statement, runs, max(sums, key=_steps))
        return statement

    return rewritten(module, (tirx.SeqStmt, pipelined))


def pipeline_reading(module: IRModule, name: str) -> IRModule:
    """`module`, in which iterations of loops with the annotation `PIPELINED` prefetch what the next one reads of the
    parameter of this name, in place."""
    around = nodes(module, tirx.For)

    def pipelined(loop: tirx.For) -> tirx.For:
        if PIPELINED not in loop.annotations:
            return loop
        updates = [each for each in nodes(loop.body, SBlockRealize) if _has_sum(each)]
        reads = [(load, each) for each in updates for load in nodes(each.block.body, TensorLoad)]
        load, update = next(pair for pair in reads if pair[0].source.name == name)  # the schedule reads it in place
        runs = _next_runs(load, update, nodes(loop.body, tirx.For), around)
        body = loop.body if runs is None else _pipelined(loop.body, runs, _loops(loop.body))
        return with_body(loop, body, {key: value for key, value in loop.annotations.items() if key != PIPELINED})

    return rewritten(module, (tirx.For, pipelined))


def leaves_time(fmas: int, runs: int, lines: int) -> bool:
    """Whether so many FMAs take long enough to prefetch so many runs of so many cache lines each."""
    return fmas >= runs * (FMAS_OF_LINE * lines + FMAS_OF_RUN)


@dataclass(frozen=True)
class _Runs:
    """A grid of runs of a tensor: from element `first` on, so many `counts` of them along each of the grid's axes,
    outermost first, `strides` elements from each other. A run has so many cache `lines`."""

    source: tirx.Buffer
    first: Index
    counts: Sequence[int]
    strides: Sequence[int]
    lines: int

    def prefetch_run(self, number: Index) -> tirx.Stmt:
        """Prefetch the run with a number."""
        place = self.first
        for count, stride in reversed(list(zip(self.counts, self.strides))):
            place = place + number % count * stride
            number = number // count
        axes, line = [tirx.const(0, "int64")] * (len(self.source.shape) - 1), _line(self.source)
        prefetches = [prefetch(self.source, [*axes, place + line * each], cache=2) for each in range(self.lines)]
        return tirx.SeqStmt(prefetches) if len(prefetches) > 1 else prefetches[0]


def _pipelined(statement: Statement, runs: _Runs, loops: Sequence[tirx.For]) -> Statement:
    """`statement` with runs prefetched in one of the serial `loops` around a sum: the last one with about as many steps
    as runs, but not the innermost. If a step would prefetch many lines, the next loop is split, and each of its parts
    prefetches some. Unchanged if there are too few FMAs."""
    total = prod(runs.counts)
    if not leaves_time(_fmas(loops), total, runs.lines):
        return statement
    serial = list(takewhile(lambda loop: loop.kind == tirx.ForKind.SERIAL and TILES not in loop.annotations, loops))
    steps = list(accumulate(map(_extent, serial), mul))
    chosen = max(sum(count <= 2 * total for count in steps[:-1]) - 1, 0)
    inner = next((loop for loop in serial[chosen + 1 :] if _extent(loop) > 1), None)
    lines = ceil(total / steps[chosen]) * runs.lines
    parts = _parts(inner, lines, _fmas(loops) // steps[chosen]) if inner is not None else 1
    step, part, run = tirx.const(0, "int64"), tirx.Var("part", "int64"), tirx.Var("run", "int64")
    for loop in serial[: chosen + 1]:
        step = step * _extent(loop) + (loop.loop_var if _extent(loop) > 1 else 0)
    step = step * parts + part if parts > 1 else step
    each = ceil(total / (steps[chosen] * parts))
    prefetches = tirx.For(run, 0, each, tirx.ForKind.SERIAL, runs.prefetch_run(step * each + run))
    wanted = inner if inner is not None and parts > 1 else serial[chosen]

    def with_prefetches(loop: tirx.For) -> tirx.For:
        if not loop.loop_var.same_as(wanted.loop_var):
            return loop
        if parts == 1:
            return with_body(loop, tirx.SeqStmt([prefetches, loop.body]))
        size = _extent(loop) // parts
        body = replaced(loop.body, {loop.loop_var: part * size + loop.loop_var})
        rest = tirx.For(loop.loop_var, 0, size, loop.kind, body, annotations=loop.annotations)
        return tirx.For(part, 0, parts, tirx.ForKind.SERIAL, tirx.SeqStmt([prefetches, rest]))

    changed: Statement = structural_map(statement, (tirx.For, with_prefetches))
    return changed


def _parts(loop: tirx.For, lines: int, fmas: int) -> int:
    """The number of parts of a loop of so many FMAs, each of which prefetches at most `AT_ONCE` of so many lines."""
    wanted = least_divisor(_extent(loop), ceil(lines / AT_ONCE))
    return largest_divisor(_extent(loop), min(wanted, max(fmas // LEAST_FMAS, 1)))


def _packed_next(pack: tirx.Stmt, around: Sequence[tirx.For]) -> _Runs | None:
    """What a nest packs in the next iteration of the loops around it; None if that is no grid of whole lines."""
    (realize,) = nodes(pack, SBlockRealize)
    loads = nodes(realize.block.body, TensorLoad)
    if not loads:
        return None  # it is all padding
    return _next_runs(loads[-1], realize, nodes(pack, tirx.For), around)


def _next_runs(
    load: TensorLoad, realize: SBlockRealize, own: Sequence[tirx.For], around: Sequence[tirx.For]
) -> _Runs | None:
    """What a load of a block reads in its `own` loops, in the next iteration of the loops `around` these; None if that
    is no grid of whole lines."""
    source = load.source
    bound = dict(zip((each.var for each in realize.block.iter_vars), realize.iter_values))
    places = [replaced(place, bound) for place in load.indices]
    begin = {loop.loop_var: tirx.const(0, "int64") for loop in own}
    first = _next_round([replaced(place, begin) for place in places], around)
    grid = _grid(_element(source, places), own, _line(source))
    if first is None or grid is None or grid[0][0] < _line(source):
        return None
    (run, _), *outer = grid
    lines = largest_divisor(-(-run // _line(source)), MOST_LINES)
    outer.insert(0, (-(-run // _line(source)) // lines, lines * _line(source)))
    counts, strides = zip(*reversed(outer))
    return _Runs(source, _element(source, first), counts, strides, lines)


def _line(source: tirx.Buffer) -> int:
    """The elements of a cache line."""
    return CACHE_LINE * 8 // int(DataType(str(source.dtype)).bits)


def _element(source: tirx.Buffer, places: Sequence[Index]) -> Index:
    """The number of the element that lies at some places along the axes."""
    number: Index = tirx.const(0, "int64")
    for place, size in zip(places, source.shape):
        number = number * size + place
    return number


def _grid(element: Index, loops: Sequence[tirx.For], line: int) -> list[tuple[int, int]] | None:
    """(count, distance) of the elements that some loops read: of a run of them, of runs, and so on; None if the
    element's number is not linear in the loops. The gaps in a run are shorter than a cache line."""
    analyzer, steps = Analyzer(), []
    for loop in loops:
        step = analyzer.simplify(replaced(element, {loop.loop_var: loop.loop_var + 1}) - element)
        if isinstance(step, tirx.IntImm) and not int(step):
            continue
        if not isinstance(step, tirx.IntImm) or not isinstance(loop.extent, tirx.IntImm):
            return None
        if int(loop.extent) > 1:
            steps.append((abs(int(step)), int(loop.extent)))
    grid = [(1, 1)]
    for step, extent in sorted(steps):
        count, stride = grid[-1]
        gap = line if stride == 1 else 1
        if step % stride == 0 and step < count * stride + gap:  # they overlap, or go on where the others end
            grid[-1] = (count + step // stride * (extent - 1), stride)
        else:
            grid.append((extent, step))
    return grid


def _next_round(places: Sequence[Index], loops: Sequence[tirx.For]) -> list[Index] | None:
    """The indices in the next iteration of those of the `loops`, innermost first, that they depend on; None if they
    depend on none."""
    read = [var for place in places for var in nodes(place, tirx.Var)]
    around = [loop for loop in loops if _extent(loop) > 1 and any(loop.loop_var.same_as(var) for var in read)]
    values, carry = {}, tirx.const(1, "int64")
    for loop in around:
        ahead = loop.loop_var + carry
        values[loop.loop_var], carry = ahead % loop.extent, ahead // loop.extent
    return [replaced(place, values) for place in places] if around else None


def _loops(statement: tirx.Stmt) -> list[tirx.For]:
    """The loops around a sum, outermost first, without the vectorised one."""
    if isinstance(statement, tirx.For) and statement.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED):
        return [statement, *_loops(statement.body)]
    if isinstance(statement, tirx.AttrStmt):
        return _loops(statement.body)
    if isinstance(statement, tirx.SeqStmt):
        return next((_loops(each) for each in statement.seq if _has_sum(each)), [])
    return []


def _extent(loop: tirx.For) -> int:
    """A loop's extent; 1 if it differs from work item to work item."""
    return int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 1


def _steps(loops: Sequence[tirx.For]) -> int:
    return prod(map(_extent, loops))


def _fmas(loops: Sequence[tirx.For]) -> int:
    """How many FMAs start in the time that a sum takes."""
    in_tiles = any(TILES in loop.annotations for loop in loops)
    return _steps(loops) // (PRODUCTS_IN_TILES if in_tiles else 1)


def _has_sum(statement: tirx.Stmt) -> bool:
    return any(name.endswith("_update") for name in _names(statement))


def _names(statement: tirx.Stmt) -> list[str]:
    """The names of all blocks in a statement."""
    return [realize.block.name_hint for realize in nodes(statement, SBlockRealize)]
