"""The last rewrite of a schedule: stores to a result's stage become stores to the user's tensor.

    result[n, g, h, w, c] = sum[..]    ->    if c < channels: out[n, g * channels + c, 2 * h + 1, w] = sum[..]

A schedule works on results in the sum's own order of axes, with extents that are multiples of its tile. Here the output
map of the expression gives each store its index in the user's tensor, and the conditions that keep the surplus out of
it. Since this comes last, no rewrite of loops has to handle a condition or an interleaved axis, and the sums of several
output phases may fill one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import IRModule, Range, TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock
from tvm_ffi.structural import structural_map

from tvmconvgrad.te import Sum
from tvmconvgrad.te.tensors import OutputMap
from tvmconvgrad.tir.rewriting import with_parts


def place(module: IRModule, expression: Sum, shape: tuple[int, ...]) -> IRModule:
    """`module` with one result `out` of this shape in place of the expression's results."""
    if not expression.output_maps:
        return module
    main = module["main"]
    stages = main.params[len(expression.inputs) :]
    places = {stage.name: where for stage, where in zip(stages, expression.output_maps)}
    extents = [tirx.IntImm("int64", extent) for extent in shape]
    result = tirx.decl_buffer(extents, str(stages[0].dtype), "out")
    zero = tirx.IntImm("int64", 0)
    partitions = [Range.from_min_extent(zero, extent) for extent in extents]
    everything = TensorRegion(result, partitions, tirx.BufferRegionType())

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        where = places.get(statement.buffer.name)
        return statement if where is None else _placed(statement, where, result)

    def load(expression: TensorLoad) -> TensorLoad:
        where = places.get(expression.source.name)
        return expression if where is None else tirx.BufferLoad(result, where(*expression.indices).index)

    def block(statement: SBlock) -> SBlock:
        reads, writes = (
            [everything if region.source.name in places else region for region in regions]
            for regions in (statement.reads, statement.writes)
        )
        return with_parts(statement, reads=reads, writes=writes)

    body = structural_map(main.body, ((TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)))
    placed = tirx.PrimFunc([*main.params[: len(expression.inputs)], result], body, main.ret_type, main.attrs)
    return IRModule({"main": placed}, attrs=module.attrs)


def _placed(statement: tirx.BufferStore, where: Callable[..., OutputMap], result: tirx.Buffer) -> tirx.Stmt:
    """The store to the user's tensor, its conditions nested one inside of the other: so one that differs between a
    vector's lanes does not keep the others from being tested once for the vector."""
    place = where(*statement.indices)
    placed: tirx.Stmt = tirx.BufferStore(result, statement.value, place.index)
    for condition in reversed(place.inside):
        placed = tirx.IfThenElse(condition, placed, None)
    return placed
