"""The stages of an expression as functions from an index to an element's value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.te import Expression
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes, replaced


@dataclass(frozen=True)
class Stage:
    """One stage: its element at index `variables` is `value`; for a sum, the sum of `value` over `summed`."""

    buffer: tirx.Buffer
    variables: tuple[tirx.Var, ...]
    summed: tuple[tirx.Var, ...]
    value: Index
    extents: tuple[int, ...]
    """The extents of `variables`, then those of `summed`."""

    @property
    def name(self) -> str:
        """The name in the expression."""
        return str(self.buffer.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the stage."""
        return self.extents[: len(self.variables)]

    def at(self, index: Sequence[Index], summed: Sequence[Index] = ()) -> Index:
        """The element at an index, or the summand."""
        return replaced(self.value, dict(zip((*self.variables, *self.summed), (*index, *summed))))

    def read(self, index: Sequence[Index]) -> tuple[TensorLoad, Index]:
        """The load of an element, and the condition under which it is loaded; otherwise the element is zero."""
        value = self.at(index)
        (source,) = nodes(value, TensorLoad)
        guards = [call for call in nodes(value, Call) if call.op.same_as(IF_THEN_ELSE)]
        return source, guards[0].args[0] if guards else tirx.const(True)


def expression_stages(expression: Expression) -> tuple[tuple[tirx.Buffer, ...], dict[str, Stage]]:
    """The program's parameters, and all stages of an expression by name."""
    function = expression.prim_func()
    blocks = [block for block in nodes(function, SBlock) if block.name_hint != "root"]
    found = [_stage(block) for block in blocks]
    return tuple(function.params), {stage.name: stage for stage in found}


def _stage(block: SBlock) -> Stage:
    (write,) = nodes(block.body, tirx.BufferStore)
    plain = [each for each in block.iter_vars if each.iter_type == tirx.IterVar.DataPar]
    summed = [each for each in block.iter_vars if each.iter_type == tirx.IterVar.CommReduce]
    value = write.value.b if summed else write.value  # a sum is written as itself plus the summand
    extents = tuple(int(each.dom.extent) for each in (*plain, *summed))
    return Stage(write.buffer, tuple(each.var for each in plain), tuple(each.var for each in summed), value, extents)
