"""Rewrites of a scheduled program: what would only add products with padding is left out.

    for tap: for k: tile += data[p + tap - pad, k] * w[tap, k]
    ->
    for tap: if 0 <= p + tap - pad < size: for k: tile += data[p + tap - pad, k] * w[tap, k]

A sum reads its data through a stage that is padded with zeros (te/operands.py). If all that a tile reads at a tap,
along one axis, lies in the padding, it would add nothing. So a condition around the tile and the loops over channels
leaves that tap out. Along an axis on which a tile reads only one element at a tap, no zero is ever read then; such
padding may be implicit, that is, it is not stored.

Where a schedule unrolls a tile's positions and the taps along an axis, and peels or unrolls the loop over its tiles,
the condition of each position and tap is a constant. It is set for each of them then, so that nothing is left of the
products with padding.

Where a sum reads the user's data in place there is no such stage, and the product of each element that may be padding
has a condition of its own:

    tile += if_then_else(inside, data, 0) * w    ->    if inside: tile += data * w
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Call, Expr, IRModule, Range, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi.structural import structural_map

from tvmconvgrad.te import Expression
from tvmconvgrad.te.views import PaddedView
from tvmconvgrad.tir.annotations import CONDITION, PAIRS, PEEL, TILES
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes, replaced, rewritten, uses, with_body

SPACE = 3
"""The number of the first spatial axis of a stage of data, which packing keeps (cpu/packing/data.py)."""


def elide_padding(module: IRModule, expression: Expression) -> IRModule:
    """`module` without the taps of the expression's sums at which a tile reads nothing but padding.

    Raises RuntimeError if the schedule lets a sum read implicit padding.
    """
    views = {axis: view for axis, view in enumerate(expression.views) if view.implicit or not view.is_inside}
    if not views:
        return module
    analyzer = Analyzer()
    for loop in nodes(module, tirx.For):
        analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    marked = [loop for loop in nodes(module, tirx.For) if not {PAIRS, TILES}.isdisjoint(loop.annotations)]
    of_tiles = {loop.loop_var for mark in marked for loop in nodes(mark, tirx.For)}
    known = {loop.loop_var for loop in nodes(module, tirx.For) if _is_known(loop)}
    eliding = _Eliding(expression.operands[0], views, analyzer, of_tiles, known)
    module = rewritten(module, (SBlockRealize, eliding.block), (tirx.For, eliding.loop))
    eliding.expect_no_implicit()
    return module


def elide_pads_in_place(module: IRModule, data: str) -> IRModule:
    """`module` without products of pads, where sums read the parameter `data` in place."""

    def is_guard(call: Call) -> bool:
        return bool(call.op.same_as(IF_THEN_ELSE) and _loads(call, data))

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        conditions = [call.args[0] for call in nodes(statement.value, Call) if is_guard(call)]
        if not conditions:
            return statement
        value = structural_map(statement.value, (Call, lambda call: call.args[1] if is_guard(call) else call))
        bare = tirx.BufferStore(statement.buffer, value, statement.indices)
        return tirx.AttrStmt(tirx.IntImm("int32", 0), CONDITION, tirx.all(*conditions), bare)

    return rewritten(module, (tirx.BufferStore, store))


@dataclass
class _Range:
    """What a tile reads along an axis: the stage's elements `first` to `last`, as expressions of the loops around
    it."""

    view: PaddedView
    first: Expr
    last: Expr

    def uses(self, var: tirx.Var) -> bool:
        return uses(self.first, var) or uses(self.last, var)

    def is_known(self, known: Collection[tirx.Var]) -> bool:
        """Whether it is a constant where these variables are."""
        return all(var in known for end in (self.first, self.last) for var in tirx.analysis.undefined_vars(end))

    def over(self, loop: tirx.For) -> _Range:
        """The range that all steps of one of the tile's loops read together."""
        begin, end = loop.min, loop.min + loop.extent - 1
        ends = (replaced(self.first, {loop.loop_var: begin}), replaced(self.last, {loop.loop_var: end}))
        return _Range(self.view, *ends)

    @property
    def reads_data(self) -> list[Expr]:
        """The conditions for some of the range to be data instead of padding. A range of one element is then data as a
        whole, which implicit padding requires."""
        view = self.view
        analyzer = Analyzer()
        if view.implicit and not analyzer.can_prove_equal(self.first, self.last):
            raise RuntimeError(
                f"a tile reads several elements, {self.first} to {self.last}, along an axis with implicit padding"
            )
        if not analyzer.can_prove_equal((self.last - self.first) % view.taps, 0):
            return [tirx.const(True)]  # gathered elements are in order only for one tap
        return [
            analyzer.simplify(view.moved(self.last) >= view.shift),
            analyzer.simplify(view.moved(self.first) < view.shift + view.size),
        ]


class _Eliding:
    """Callbacks that see each sum's loop nest from the inside to the outside, and put in the conditions."""

    def __init__(
        self,
        data: str,
        views: dict[int, PaddedView],
        analyzer: Analyzer,
        of_tiles: Collection[tirx.Var],
        known: Collection[tirx.Var],
    ) -> None:
        self.data, self.views = data, views
        self.analyzer = analyzer
        """It has bound all loop variables to their extents."""
        self.of_tiles = of_tiles
        """The variables of loops for which instructions on pairs, or on tile registers, stand."""
        self.known = known
        """The variables of loops of which the program has a copy for each step, or for the first, the last and those
        between."""
        self.pending: list[_Range] = []
        """The ranges of the current nest that have no condition yet."""

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
            self.pending = [_Range(each.view, *[replaced(each.first, values)] * 2) for each in meeting]
        return realize

    def expect_no_implicit(self) -> None:
        """Raise RuntimeError if a range with implicit padding is left without a condition."""
        if any(found.view.implicit for found in self.pending):
            raise RuntimeError(f"implicit padding of {self.data} is left without a condition")

    def loop(self, loop: tirx.For) -> tirx.For:
        used = [found for found in self.pending if found.uses(loop.loop_var)]
        if not used:
            return loop
        others = [found for found in self.pending if found not in used]
        if not self._may_condition(loop, used):
            self.pending = [*others, *(found.over(loop) for found in used)]
            return loop
        self.pending = others
        conditions = [condition for found in used for condition in found.reads_data]
        unknown = [condition for condition in conditions if not self.analyzer.can_prove(condition)]
        return with_body(loop, self._guarded(loop.body, tirx.all(*unknown))) if unknown else loop

    def _may_condition(self, loop: tirx.For, used: Sequence[_Range]) -> bool:
        """Whether a condition may stand around what a step reads: of a loop around tiles, or of a tile's unrolled one,
        if it is a constant for each step."""
        if loop.loop_var in self.of_tiles or _has_one_step(loop):
            return False
        known = all(found.is_known(self.known) for found in used)
        return loop.kind == tirx.ForKind.SERIAL or (loop.kind == tirx.ForKind.UNROLLED and known)

    def _guarded(self, body: tirx.Stmt, condition: Expr) -> tirx.Stmt:
        """`body` with a condition around the statements that read the data. Others, which begin or use a sum, are kept
        outside of it."""
        if isinstance(body, tirx.SeqStmt):
            return tirx.SeqStmt([self._guarded(part, condition) for part in body.seq])
        reading = [bool(_loads(block, self.data)) for block in nodes(body, SBlock)]
        if isinstance(body, tirx.For) and any(reading) and not all(reading):
            return with_body(body, self._guarded(body.body, condition))
        return tirx.AttrStmt(tirx.IntImm("int32", 0), CONDITION, condition, body) if all(reading) else body


def _is_known(loop: tirx.For) -> bool:
    """Whether the program has a copy of the loop's body for each of its steps, or for the first, the last and all
    others."""
    return _has_one_step(loop) or loop.kind == tirx.ForKind.UNROLLED or PEEL in loop.annotations


def _has_one_step(loop: tirx.For) -> bool:
    """Whether a loop has one step in all work items; of some loops the last one has fewer than others."""
    return isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 1


def _loads(node: tirx.Stmt | SBlock | Expr, name: str) -> list[TensorLoad]:
    return [load for load in nodes(node, TensorLoad) if load.source.name == name]
