"""A rewrite of a scheduled program: data that is read where it lies is fetched a tile ahead.

A tile of positions reads one short run of channels of each. A core's own prefetcher loses such runs at every row, and
the next tile would wait for memory. Each run therefore fetches the one of the same channels in the next tile.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi.structural import structural_map, structural_walk

from tvmconvgrad.schedules.variables import replaced, uses

FETCH = "fetch_positions_ahead"
"""Marks the loop over runs of channels, with the positions of a tile."""


def fetch(module: IRModule, data: str) -> IRModule:
    """`module`, in which the loops that are marked fetch the parameter `data`, channels last."""

    def loop(statement: tirx.For) -> tirx.For:
        if FETCH not in statement.annotations:
            return statement
        others = {key: value for key, value in statement.annotations.items() if key != FETCH}
        fetches = _fetches(statement.body, data, int(statement.annotations[FETCH]))
        body = tirx.SeqStmt([*fetches, statement.body])
        return tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, body, annotations=others)

    main = module["main"]
    body = structural_map(main.body, (tirx.For, loop))
    return IRModule({"main": tirx.PrimFunc(main.params, body, main.ret_type, main.attrs)}, attrs=module.attrs)


def _fetches(run: tirx.Stmt, data: str, ahead: int) -> list[tirx.Stmt]:
    """A fetch for each position of the tile: of the run's first element, at the first tap."""
    buffer, index = _first_load(run, data)
    loops: list[tirx.For] = []
    structural_walk(run, (tirx.For, loops.append))
    begin = {loop.loop_var: loop.min for loop in loops}
    rows = [loop for loop in loops if loop.kind == tirx.ForKind.UNROLLED and uses(index[-2], loop.loop_var)]
    tile = [{**begin, row.loop_var: row.min + i} for row in rows for i in range(int(row.extent))]
    fetches: list[tirx.Stmt] = []
    for values in tile or [begin]:
        *outer, position, channel = (replaced(expression, values) for expression in index)
        address = tirx.address_of(tirx.BufferLoad(buffer, [*outer, position + ahead, channel]))
        to_read, keep, of_data = (tirx.IntImm("int32", value) for value in (0, 3, 1))
        fetches.append(tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, to_read, keep, of_data)))
    return fetches


def _first_load(run: tirx.Stmt, name: str) -> tuple[tirx.Buffer, list[Expr]]:
    """What the first block reads of a buffer, and where, in terms of the loops."""
    realizes: list[SBlockRealize] = []
    structural_walk(run, (SBlockRealize, realizes.append))
    loads: list[TensorLoad] = []
    structural_walk(realizes[0].block, (TensorLoad, loads.append))
    load = next(load for load in loads if load.source.name == name)
    values = dict(zip((iter_var.var for iter_var in realizes[0].block.iter_vars), realizes[0].iter_values))
    return load.source, [replaced(expression, values) for expression in load.indices]
