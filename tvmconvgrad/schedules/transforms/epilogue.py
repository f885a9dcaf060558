"""The last rewrite of a schedule: stores to a result's stage become stores to the user's tensor.

    result[n, g, h, w, c] = sum[..]    ->    if c < channels: out[n, g * channels + c, 2 * h + 1, w] = sum[..]

A schedule works on results in the sum's own order of axes, with extents that are multiples of its tile. Here the output
map of the expression gives each store its index in the user's tensor, and the conditions that keep the surplus out of
it. Since this comes last, no rewrite of loops has to handle a condition or an interleaved axis, and the sums of several
output phases may fill one tensor.

A kernel that accumulates adds each final value to what the user's tensor has, in f32:

    out[i] = rounded(sum[i])           ->    out[i] = rounded(out[i] + sum[i])

A sum that is added up in place, tile by tile, is left as it is, and only loses the store of zero that begins it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.ir import IRModule, Range, TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock
from tvm_ffi.structural import structural_map

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Sum
from tvmconvgrad.te.tensors import ACCUMULATOR, Index, OutputMap, result_dtype
from tvmconvgrad.tir.rewriting import nodes, with_parts

_Output: TypeAlias = "tuple[tirx.Buffer, Callable[..., OutputMap]]"
"""A user's tensor, and the map from a stage's elements to its own."""


def apply_output_maps(module: IRModule, expression: Sum, problem: Problem) -> IRModule:
    """`module` with one result `out` in place of the expression's results. If the problem accumulates, the result and
    the gradient by the bias are added to what is there."""
    adds = problem.epilogue.accumulate
    if expression.results and not expression.output_maps and not adds:
        return module
    main = module["main"]
    inputs, stages = main.params[: len(expression.inputs)], main.params[len(expression.inputs) :]
    extents = [tirx.IntImm("int64", extent) for extent in problem.output_shape]
    out = tirx.decl_buffer(extents, result_dtype(problem), "out")
    maps = expression.output_maps or [_in_place] * len(expression.results)
    outputs: dict[str, _Output] = {stage.name: (out, where) for stage, where in zip(stages, maps)}
    beside = stages[len(expression.results) :]
    if adds:
        outputs |= {stage.name: (stage, _in_place) for stage in beside}

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        found = outputs.get(statement.buffer.name)
        return statement if found is None else _stored(statement, *found, adds)

    def load(expression: TensorLoad) -> TensorLoad:
        found = outputs.get(expression.source.name)
        return expression if found is None else tirx.BufferLoad(found[0], found[1](*expression.indices).index)

    def block(statement: SBlock) -> SBlock:
        reads, writes = ([_moved(region, outputs) for region in each] for each in (statement.reads, statement.writes))
        init = None if _does_nothing(statement.init) else statement.init
        return with_parts(statement, reads=reads, writes=writes, init=init)

    body = structural_map(main.body, ((TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)))
    stored = tirx.PrimFunc([*inputs, out, *beside], body, main.ret_type, main.attrs)
    return IRModule({"main": stored}, attrs=module.attrs)


def _in_place(*index: Index) -> OutputMap:
    """The map of a stage that has the user's order of axes."""
    return OutputMap([], list(index))


def _moved(region: TensorRegion, outputs: dict[str, _Output]) -> TensorRegion:
    """The region of a stage, or all of the user's tensor in its place."""
    found = outputs.get(region.source.name)
    if found is None:
        return region
    everything = [Range.from_min_extent(tirx.IntImm("int64", 0), extent) for extent in found[0].shape]
    return TensorRegion(found[0], everything, tirx.BufferRegionType())


def _stored(statement: tirx.BufferStore, to: tirx.Buffer, where: Callable[..., OutputMap], adds: bool) -> tirx.Stmt:
    """The store to the user's tensor, its conditions nested one inside of the other: so one that differs between a
    vector's lanes does not keep the others from being tested once for the vector."""
    at, value = where(*statement.indices), statement.value
    if adds:
        if isinstance(value, tirx.FloatImm) and value.value == 0:
            return tirx.Evaluate(tirx.IntImm("int32", 0))
        value = _added(value, tirx.BufferLoad(to, at.index))
    stored: tirx.Stmt = tirx.BufferStore(to, value, at.index)
    for condition in reversed(at.inside):
        stored = tirx.IfThenElse(condition, stored, None)
    return stored


def _added(value: tvm.ir.Expr, before: TensorLoad) -> tvm.ir.Expr:
    """A final value, rounded once with what was there `before`; a sum that is added up in place as it is."""
    if any(load.source.same_as(before.source) for load in nodes(value, TensorLoad)):
        return value
    dtype = str(before.source.dtype)
    total = value.value if isinstance(value, tirx.Cast) else value
    return (before.astype(ACCUMULATOR) + total.astype(ACCUMULATOR)).astype(dtype)


def _does_nothing(init: tirx.Stmt | None) -> bool:
    return isinstance(init, tirx.Evaluate)
