"""A rewrite of a scheduled program: what meets nothing but pads is left out.

A sum reads its data through a stage that is extended by zeros (te/tensors.py). Where all that a register tile reads at
a tap are such zeros, along one axis, nothing is added: a condition, outside of the tile and of the loops over channels,
leaves it out. Along an axis on which a tile reads one element at a tap, no zero is ever read, and none need be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, IRModule, Range, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer

from tvmconvgrad.te import Sum
from tvmconvgrad.te.windows import Window
from tvmconvgrad.tir.annotations import CONDITION, PAIRS
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, uses, with_body

SPACE = 3
"""The first spatial axis of a stage of data, packed (cpu/blocks.py) or not."""


def skip(module: IRModule, expression: Sum) -> IRModule:
    """`module` without the products of the expression's sums with pads."""
    windows = {axis: window for axis, window in enumerate(expression.windows) if window.bare or not window.is_inside}
    if not windows:
        return module
    analyzer = Analyzer()
    for loop in nodes(module, tirx.For):
        analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    skipping = _Skipping(expression.operands[0], windows, analyzer)
    module = rewritten(module, (SBlockRealize, skipping.block), (tirx.For, skipping.loop))
    skipping.expect_no_bare()
    return module


@dataclass
class _Range:
    """What a tile reads along an axis: elements `first` to `last` of the stage, in terms of the loops around it."""

    window: Window
    first: Expr
    last: Expr

    def uses(self, var: tirx.Var) -> bool:
        return uses(self.first, var) or uses(self.last, var)

    def over(self, loop: tirx.For) -> _Range:
        """The range of all steps of a loop of the tile."""
        begin, end = loop.min, loop.min + loop.extent - 1
        ends = (replaced(self.first, {loop.loop_var: begin}), replaced(self.last, {loop.loop_var: end}))
        return _Range(self.window, *ends)

    @property
    def meets_data(self) -> list[Expr]:
        """The conditions for some of it to be data; for all of it, where there is nothing else."""
        window = self.window
        analyzer = Analyzer()
        if window.bare and not analyzer.can_prove_equal(self.first, self.last):
            raise RuntimeError(f"a tile reads several elements along an axis without pads: {self.first} to {self.last}")
        if not analyzer.can_prove_equal((self.last - self.first) % window.taps, 0):
            return [tirx.const(True)]  # of gathered elements only those of one tap are in order
        return [
            analyzer.simplify(window.moved(self.last) >= window.shift),
            analyzer.simplify(window.moved(self.first) < window.shift + window.size),
        ]


class _Skipping:
    """Callbacks from the inside to the outside of each sum's nest."""

    def __init__(self, data: str, windows: dict[int, Window], analyzer: Analyzer) -> None:
        self.data, self.windows = data, windows
        self.analyzer = analyzer
        """It knows all loops' extents."""
        self.ranges: list[_Range] = []
        """Those of the nest at hand that have no condition yet."""

    def block(self, realize: SBlockRealize) -> SBlockRealize:
        loads = _loads(realize.block, self.data)
        if loads and realize.block.name_hint != "root":
            self.expect_no_bare()
            analyzer, values = Analyzer(), {}
            for iter_var, value in zip(realize.block.iter_vars, realize.iter_values):
                analyzer.bind(iter_var.var, iter_var.dom)
                values[iter_var.var] = value
            indices = [loads[0].indices[SPACE + axis] for axis in self.windows]
            found = [_Range(window, index, index) for window, index in zip(self.windows.values(), indices)]
            meeting = [each for each in found if not analyzer.can_prove(tirx.all(*each.meets_data))]
            self.ranges = [_Range(each.window, *[replaced(each.first, values)] * 2) for each in meeting]
        return realize

    def expect_no_bare(self) -> None:
        """Make sure that all ranges of a nest that must not go beyond the data have their condition."""
        if any(found.window.bare for found in self.ranges):
            raise RuntimeError("no loop keeps a sum out of pads that are not stored")

    def loop(self, loop: tirx.For) -> tirx.For:
        used = [found for found in self.ranges if found.uses(loop.loop_var)]
        if not used:
            return loop
        others = [found for found in self.ranges if found not in used]
        if loop.kind != tirx.ForKind.SERIAL or int(loop.extent) == 1 or PAIRS in loop.annotations:
            self.ranges = [*others, *(found.over(loop) for found in used)]
            return loop
        self.ranges = others
        conditions = [condition for found in used for condition in found.meets_data]
        unknown = [condition for condition in conditions if not self.analyzer.can_prove(condition)]
        return with_body(loop, self._guarded(loop.body, tirx.all(*unknown))) if unknown else loop

    def _guarded(self, body: tirx.Stmt, condition: Expr) -> tirx.Stmt:
        """`body` with a condition around what reads the data, and nothing else: what is beside it begins a sum, or
        uses it."""
        if isinstance(body, tirx.SeqStmt):
            return tirx.SeqStmt([self._guarded(part, condition) for part in body.seq])
        reading = [bool(_loads(block, self.data)) for block in nodes(body, SBlock)]
        if isinstance(body, tirx.For) and any(reading) and not all(reading):
            return with_body(body, self._guarded(body.body, condition))
        return tirx.AttrStmt(tirx.IntImm("int32", 0), CONDITION, condition, body) if all(reading) else body


def _loads(node: tirx.Stmt | SBlock, name: str) -> list[TensorLoad]:
    return [load for load in nodes(node, TensorLoad) if load.source.name == name]
