"""The last rewrite of a schedule: stores to a result's stage become stores to the user's tensor.

    result[n, g, h, w, c] = sum[..]    ->    if c < channels: out[n, g * channels + c, 2 * h + 1, w] = sum[..]

A schedule works on results in the sum's own order of axes, with extents that are multiples of its tile. Here the output
map of the expression gives each store its index in the user's tensor, and the conditions that keep the surplus out of
it. Since this comes last, no rewrite of loops has to handle a condition or an interleaved axis, and the sums of several
output phases may fill one tensor.

A kernel that accumulates adds each final value to what the user's tensor has, in f32, and one with a bias adds that:

    out[i] = rounded(sum[i])           ->    out[i] = rounded(out[i] + sum[i])      # accumulate
                                       ->    out[i] = rounded(bias[c] + sum[i])     # bias; c is the channel of i

A sum that is added up in place, tile by tile, is left as it is: it only begins with what is added instead of with zero.
Elements without products, which would be zero, are that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.ir import IRModule, Range, TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock
from tvm_ffi.structural import structural_map

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.te.tensors import ACCUMULATOR, DTYPES, Index, OutputMap, result_dtype
from tvmconvgrad.tir.names import BIAS, OUT
from tvmconvgrad.tir.rewriting import nodes, with_parts

_Added: TypeAlias = "Callable[[Sequence[Index]], TensorLoad]"
"""What is added to the element of a user's tensor at an index."""


@dataclass(frozen=True)
class _Output:
    """A user's tensor, the map from a stage's elements to its own, and what is added to these, if anything is."""

    tensor: tirx.Buffer
    where: Callable[..., OutputMap]
    added: _Added | None = None


def apply_output_maps(module: IRModule, expression: Expression, problem: Problem) -> IRModule:
    """`module` with one result `out` in place of the expression's results. If the problem accumulates, the result and
    the bias gradient are added to what is there. If it has a bias, that is the last parameter."""
    epilogue = problem.epilogue
    if expression.results and not (expression.output_maps or epilogue.accumulate or epilogue.bias):
        return module
    main = module["main"]
    inputs, stages = main.params[: len(expression.inputs)], main.params[len(expression.inputs) :]
    out = _buffer(problem.output_shape, result_dtype(problem), OUT)
    bias = [_buffer(problem.bias_shape, DTYPES[problem.dtype], BIAS)] if epilogue.bias else []
    added = _of_channel(bias[0], problem.data_format) if bias else _what_is_there(out) if epilogue.accumulate else None
    maps = expression.output_maps or [_in_place] * len(expression.results)
    outputs = {stage.name: _Output(out, where, added) for stage, where in zip(stages, maps)}
    beside = stages[len(expression.results) :]
    if epilogue.accumulate:
        outputs |= {stage.name: _Output(stage, _in_place, _what_is_there(stage)) for stage in beside}

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        found = outputs.get(statement.buffer.name)
        return statement if found is None else _stored(statement, found)

    def load(expression: TensorLoad) -> TensorLoad:
        found = outputs.get(expression.source.name)
        return expression if found is None else tirx.BufferLoad(found.tensor, found.where(*expression.indices).index)

    def block(statement: SBlock) -> SBlock:
        reads, writes = ([_moved(region, outputs) for region in each] for each in (statement.reads, statement.writes))
        init = None if _does_nothing(statement.init) else statement.init
        return with_parts(statement, reads=reads, writes=writes, init=init)

    body = structural_map(main.body, ((TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)))
    stored = tirx.PrimFunc([*inputs, out, *beside, *bias], body, main.ret_type, main.attrs)
    return IRModule({"main": stored}, attrs=module.attrs)


def _buffer(shape: Sequence[int], dtype: str, name: str) -> tirx.Buffer:
    return tirx.decl_buffer([tirx.IntImm("int64", extent) for extent in shape], dtype, name)


def _what_is_there(tensor: tirx.Buffer) -> _Added:
    return lambda index: tirx.BufferLoad(tensor, list(index))


def _of_channel(bias: tirx.Buffer, data_format: str) -> _Added:
    channel = data_format.index("C") if data_format == "NCX" else -1
    return lambda index: tirx.BufferLoad(bias, [index[channel]])


def _in_place(*index: Index) -> OutputMap:
    """The map of a stage that has the user's order of axes."""
    return OutputMap([], list(index))


def _moved(region: TensorRegion, outputs: dict[str, _Output]) -> TensorRegion:
    """The region of a stage, or all of the user's tensor in its place."""
    found = outputs.get(region.source.name)
    if found is None:
        return region
    everything = [Range.from_min_extent(tirx.IntImm("int64", 0), extent) for extent in found.tensor.shape]
    return TensorRegion(found.tensor, everything, tirx.BufferRegionType())


def _stored(statement: tirx.BufferStore, to: _Output) -> tirx.Stmt:
    """The store to the user's tensor, its conditions nested one inside of the other: so one that differs between a
    vector's lanes does not keep the others from being tested once for the vector."""
    at = to.where(*statement.indices)
    value = statement.value if to.added is None else _added(statement.value, to.added(at.index), to.tensor)
    if value is None:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    stored: tirx.Stmt = tirx.BufferStore(to.tensor, value, at.index)
    for condition in reversed(at.inside):
        stored = tirx.IfThenElse(condition, stored, None)
    return stored


def _added(value: tvm.ir.Expr, other: TensorLoad, out: tirx.Buffer) -> tvm.ir.Expr | None:
    """A final value of `out` and `other`, rounded once; a sum that is added up in place as it is. None if zero is added
    to what is there."""
    dtype = str(out.dtype)
    if isinstance(value, tirx.FloatImm) and value.value == 0:
        return None if other.source.same_as(out) else other.astype(dtype)
    if any(load.source.same_as(out) for load in nodes(value, TensorLoad)):
        return value
    total = value.value if isinstance(value, tirx.Cast) else value
    return (other.astype(ACCUMULATOR) + total.astype(ACCUMULATOR)).astype(dtype)


def _does_nothing(init: tirx.Stmt | None) -> bool:
    return isinstance(init, tirx.Evaluate)
