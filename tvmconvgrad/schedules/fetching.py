"""A rewrite of a scheduled program: data that is read where it lies is fetched some positions ahead.

A tile reads a short run of channels at a position, and the run of the next position lies a row of channels away. A
core's own prefetcher loses such runs, and each would wait for memory. So each fetches the one of the same channels some
positions later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import tirx
from tvm.ir import IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi.structural import structural_map, structural_walk

from tvmconvgrad.schedules.variables import replaced

FETCH = "fetch_positions_ahead"
"""Marks a loop: each step fetches what lies so many positions ahead of that which the first tile in it reads."""

EACH = "fetch_each"
"""Marks a loop of that tile, whose steps each read a position of their own; of other loops the last step counts."""


def fetch(module: IRModule, names: Sequence[str]) -> IRModule:
    """`module`, in which marked loops fetch the parameters of these names. Channels are their last axis."""

    def loop(statement: tirx.For) -> tirx.For:
        if FETCH not in statement.annotations:
            return statement
        others = {key: value for key, value in statement.annotations.items() if key != FETCH}
        ahead = int(statement.annotations[FETCH])
        fetches = [_fetch(load, ahead) for load in _loads(statement.body) if load.source.name in names]
        body = tirx.SeqStmt([*fetches, statement.body]) if fetches else statement.body
        return tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, body, annotations=others)

    main = module["main"]
    body = structural_map(main.body, (tirx.For, loop))
    return IRModule({"main": tirx.PrimFunc(main.params, body, main.ret_type, main.attrs)}, attrs=module.attrs)


def _fetch(load: TensorLoad, ahead: int) -> tirx.Stmt:
    *outer, position, channel = load.indices
    address = tirx.address_of(tirx.BufferLoad(load.source, [*outer, position + ahead, channel]))
    to_read, keep, of_data = (tirx.IntImm("int32", value) for value in (0, 3, 1))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, to_read, keep, of_data))


def _loads(body: tirx.Stmt) -> Iterator[TensorLoad]:
    """What the first block in `body` reads: for each step of the loops marked so, the first of each vector."""
    realizes: list[SBlockRealize] = []
    structural_walk(body, (SBlockRealize, realizes.append))
    loads: list[TensorLoad] = []
    structural_walk(realizes[0].block, (TensorLoad, loads.append))
    bound = dict(zip((iter_var.var for iter_var in realizes[0].block.iter_vars), realizes[0].iter_values))
    for values in _steps(body):
        for load in loads:
            index = [replaced(replaced(expression, bound), values) for expression in load.indices]
            yield tirx.BufferLoad(load.source, index)


def _steps(body: tirx.Stmt) -> list[dict[tirx.Var, int]]:
    """Values for the variables of all loops in `body`."""
    loops: list[tirx.For] = []
    structural_walk(body, (tirx.For, loops.append))
    steps: list[dict[tirx.Var, int]] = [{}]
    for loop in loops:
        last = int(loop.extent) - 1
        taken = range(last + 1) if EACH in loop.annotations else [last if loop.kind == tirx.ForKind.UNROLLED else 0]
        steps = [{**step, loop.loop_var: tirx.const(value, "int64")} for step in steps for value in taken]
    return steps
