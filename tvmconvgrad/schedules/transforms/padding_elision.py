"""A rewrite of a scheduled program: what reads nothing but padding is left out.

A sum reads its data through a stage that is padded with zeros (te/tensors.py). Where all that a register tile reads at
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
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.tir.annotations import CONDITION, PAIRS
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, uses, with_body

SPACE = 3
"""The first spatial axis of a stage of data, packed (cpu/blocks.py) or not."""


def skip(module: IRModule, expression: Sum) -> IRModule:
    """`module` without the products of the expression's sums with pads."""
    views = {axis: view for axis, view in enumerate(expression.views) if view.implicit or not view.is_inside}
    if not views:
        return module
    analyzer = Analyzer()
    for loop in nodes(module, tirx.For):
        analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    skipping = _Skipping(expression.operands[0], views, analyzer)
    module = rewritten(module, (SBlockRealize, skipping.block), (tirx.For, skipping.loop))
    skipping.expect_no_implicit()
    return module


@dataclass
class _Range:
    """What a tile reads along an axis: elements `first` to `last` of the stage, in terms of the loops around it."""

    view: PaddedView
    first: Expr
    last: Expr

    def uses(self, var: tirx.Var) -> bool:
        return uses(self.first, var) or uses(self.last, var)

    def over(self, loop: tirx.For) -> _Range:
        """The range of all steps of a loop of the tile."""
        begin, end = loop.min, loop.min + loop.extent - 1
        ends = (replaced(self.first, {loop.loop_var: begin}), replaced(self.last, {loop.loop_var: end}))
        return _Range(self.view, *ends)

    @property
    def reads_data(self) -> list[Expr]:
        """The conditions for some of it to be data; for all of it, where there is nothing else."""
        view = self.view
        analyzer = Analyzer()
        if view.implicit and not analyzer.can_prove_equal(self.first, self.last):
            raise RuntimeError(f"a tile reads several elements along an axis without pads: {self.first} to {self.last}")
        if not analyzer.can_prove_equal((self.last - self.first) % view.taps, 0):
            return [tirx.const(True)]  # of gathered elements only those of one tap are in order
        return [
            analyzer.simplify(view.moved(self.last) >= view.shift),
            analyzer.simplify(view.moved(self.first) < view.shift + view.size),
        ]


class _Skipping:
    """Callbacks from the inside to the outside of each sum's nest."""

    def __init__(self, data: str, views: dict[int, PaddedView], analyzer: Analyzer) -> None:
        self.data, self.views = data, views
        self.analyzer = analyzer
        """It knows all loops' extents."""
        self.partitions: list[_Range] = []
        """Those of the nest at hand that have no condition yet."""

    def block(self, realize: SBlockRealize) -> SBlockRealize:
        loads = _loads(realize.block, self.data)
        if loads and realize.block.name_hint != "root":
            self.expect_no_implicit()
            analyzer, values = Analyzer(), {}
            for iter_var, value in zip(realize.block.iter_vars, realize.iter_values):
                analyzer.bind(iter_var.var, iter_var.dom)
                values[iter_var.var] = value
            indices = [loads[0].indices[SPACE + axis] for axis in self.views]
            found = [_Range(view, index, index) for view, index in zip(self.views.values(), indices)]
            meeting = [each for each in found if not analyzer.can_prove(tirx.all(*each.reads_data))]
            self.partitions = [_Range(each.view, *[replaced(each.first, values)] * 2) for each in meeting]
        return realize

    def expect_no_implicit(self) -> None:
        """Make sure that all partitions of a nest that must not go beyond the data have their condition."""
        if any(found.view.implicit for found in self.partitions):
            raise RuntimeError("no loop keeps a sum out of pads that are not stored")

    def loop(self, loop: tirx.For) -> tirx.For:
        used = [found for found in self.partitions if found.uses(loop.loop_var)]
        if not used:
            return loop
        others = [found for found in self.partitions if found not in used]
        if loop.kind != tirx.ForKind.SERIAL or int(loop.extent) == 1 or PAIRS in loop.annotations:
            self.partitions = [*others, *(found.over(loop) for found in used)]
            return loop
        self.partitions = others
        conditions = [condition for found in used for condition in found.reads_data]
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
