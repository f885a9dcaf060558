"""What a round packs was fetched in the round before, while products were summed: all of it, and not much else."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize

from tests.support.cpu.cpus import CPUS, Cpu
from tvmconvgrad.spec import Problem
from tvmconvgrad.tir.rewriting import nodes, replaced

LEVELS = [cpu for cpu in CPUS if cpu.name in ("x86-64-v3", "x86-64-v4")]
LINE = 16  # f32 of a cache line
OPERATIONS = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
}
FILTERS = [
    ((1, 1), (1, 1), (64, 512)),
    ((1, 1), (2, 2), (256, 128)),
    ((3, 3), (1, 1), (64, 256)),
    ((2, 2), (2, 2), (96, 192)),
]
DATA = [((1, 1), (1024, 512)), ((3, 3), (512, 512)), ((2, 2), (96, 1024))]

Integers = npt.NDArray[np.int64]
Lines = set[tuple[int, int]]
"""Rounds, and lines of a tensor."""


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize(("kernel", "strides", "channels"), FILTERS, ids=str)
def test_filter_gradients_fetch_what_the_next_cache_block_packs(
    kernel: tuple[int, int], strides: tuple[int, int], channels: tuple[int, int], cpu: Cpu
) -> None:
    import tvmconvgrad as cg

    size = tuple(27 * s + k for s, k in zip(strides, kernel))
    op = cg.ConvolutionBackpropFilters(
        strides=strides, pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1), filter_shape=(*kernel, *channels)
    )
    problem = op.problem((2, *size, channels[0]), (2, 28, 28, channels[1]), dtype="f32")
    module = scheduled(problem, cpu, "weights-o", {"packs": 0, "blocks": 3, "c_partitions": 1, "o_partitions": 1})
    for name, source in (("x_padded", "input_forward"), ("y_padded", "output_delta")):
        assert_fetches_next(module, name, source)


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("side", (7, 14))
def test_rows_shorter_than_a_line_are_fetched_together(side: int, cpu: Cpu) -> None:
    import tvmconvgrad as cg

    op = cg.ConvolutionBackpropFilters(
        strides=(1, 1),
        pads_begin=(0, 0),
        pads_end=(0, 0),
        dilations=(1, 1),
        filter_shape=(256, 128, 1, 1),
        data_format="NCX",
        filter_format="OIX",
    )
    problem = op.problem((8, 128, side, side), (8, 256, side, side), dtype="f32")
    wanted = {"packs": 0, "blocks": 3, "c_partitions": 1, "o_partitions": 1}
    module = scheduled(problem, cpu, "weights-o", wanted, merges=False)
    for name, source in (("x_padded", "input_forward"), ("y_padded", "output_delta")):
        if any(each.block.name_hint == name for each in nodes(module, SBlockRealize)):
            assert_fetches_next(module, name, source)
        else:
            assert_fetches_first(module, source)


@pytest.mark.parametrize("rule", ("data-positions", "data-channels"))
@pytest.mark.parametrize(("side", "channels"), [(28, (64, 32)), (32, (32, 64)), (16, (48, 256))], ids=str)
def test_data_that_is_read_in_place_is_fetched_before(side: int, channels: tuple[int, int], rule: str) -> None:
    import tvmconvgrad as cg

    op = cg.ConvolutionBackpropData(
        strides=(1, 1),
        pads_begin=(0, 0),
        pads_end=(0, 0),
        dilations=(1, 1),
        output_shape=(2, channels[0], side, side),
        data_format="NCX",
        filter_format="OIX",
    )
    problem = op.problem((2, channels[1], side, side), (*channels[::-1], 1, 1), dtype="f32")
    drawn = {"partition_tiles": 8, "n_partitions": 1}
    module = scheduled(problem, LEVELS[-1], rule, drawn)
    assert not any(each.block.name_hint == "y_padded" for each in nodes(module, SBlockRealize))
    assert_fetches_first(module, "output_delta")


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("filter_format", ("XIO", "OIX"))
@pytest.mark.parametrize(("kernel", "channels"), DATA, ids=str)
def test_data_gradients_fetch_the_next_panel(
    kernel: tuple[int, int], channels: tuple[int, int], filter_format: str, cpu: Cpu
) -> None:
    import tvmconvgrad as cg

    op = cg.ConvolutionBackpropData(
        strides=(1, 1),
        pads_begin=(0, 0),
        pads_end=(0, 0),
        dilations=(1, 1),
        output_shape=(1, 14, 14, channels[0]),
        filter_format=filter_format,
    )
    size = tuple(15 - k for k in kernel)
    shape = (*kernel, *channels) if filter_format == "XIO" else (*channels[::-1], *kernel)
    problem = op.problem((1, *size, channels[1]), shape, dtype="f32")
    module = scheduled(problem, cpu, "data-channels", {"packs_filter": 1})
    assert_fetches_next(module, "w_padded", "filter")


def scheduled(problem: Problem, cpu: Cpu, rule: str, wanted: dict[str, int], merges: bool = True) -> IRModule:
    """With those of the decisions that the rule draws for the problem."""
    from tvmconvgrad import schedules
    from tvmconvgrad.spec.reducing.merging import merged

    problem = merged(problem) if merges else problem
    drawn = schedules.schedule(problem, cpu.target, rule).candidates
    return schedules.schedule(problem, cpu.target, rule, {k: v for k, v in wanted.items() if k in drawn}).module


def assert_fetches_next(module: IRModule, name: str, source: str) -> None:
    """Whether the rounds but the last fetch the lines of `source` that the block `name` packs one round later."""
    (pack,) = [each for each in nodes(module, SBlockRealize) if each.block.name_hint == name]
    fetches = [each for each in nodes(module, tirx.Evaluate) if each.value.op.name == "tirx.prefetch"]
    fetches = [each for each in fetches if loaded(each).source.name == source]
    assert fetches
    around = loops_around(module, pack)
    rounds = [loop for loop in around if any(each.same_as(loop) for each in loops_around(module, fetches[0]))]
    bound = dict(zip((each.var for each in pack.block.iter_vars), pack.iter_values))
    places = [replaced(place, bound) for place in loaded(pack.block).indices]
    packed = lines(loaded(pack.block).source, places, around, rounds)
    fetched = set().union(
        *(lines(loaded(each).source, loaded(each).indices, loops_around(module, each), rounds) for each in fetches)
    )
    later = {(number - 1, line) for number, line in packed if number > 0}
    assert later and later <= fetched
    assert len(fetched) < 1.5 * len(packed)


def assert_fetches_first(module: IRModule, source: str) -> None:
    """Whether all lines of `source` that sums read in place, but those of the first round, are fetched before the step
    that reads them first, and not much else."""
    updates = [each for each in nodes(module, SBlockRealize) if each.block.name_hint.endswith("_update")]
    fetches = [each for each in nodes(module, tirx.Evaluate) if each.value.op.name == "tirx.prefetch"]
    fetches = [each for each in fetches if loaded(each).source.name == source]
    assert updates and fetches
    (load,) = [each for each in nodes(updates[0].block.body, TensorLoad) if each.source.name == source]
    around = loops_around(module, updates[0])
    steps = [loop for loop in around if any(each.same_as(loop) for each in loops_around(module, fetches[0]))]
    bound = dict(zip((each.var for each in updates[0].block.iter_vars), updates[0].iter_values))
    reads = lines(load.source, [replaced(place, bound) for place in load.indices], around, steps)
    fetched = set().union(
        *(lines(loaded(each).source, loaded(each).indices, loops_around(module, each), steps) for each in fetches)
    )
    first_read, first_fetch = ({line: step for step, line in sorted(found, reverse=True)} for found in (reads, fetched))
    late = {line for line, step in first_read.items() if first_fetch.get(line, step) >= step}
    assert len(late) <= len(first_read) / 4  # the first round, and what later ones share with the one before
    assert len(fetched) < 1.5 * len(first_read)


def loaded(node: Any) -> TensorLoad:
    return nodes(node, TensorLoad)[-1]


def loops_around(module: IRModule, wanted: Any) -> list[tirx.For]:
    """The outermost first."""
    found = nodes(module, tirx.For)
    return [loop for loop in found if any(each.same_as(wanted) for each in nodes(loop.body, type(wanted)))][::-1]


def lines(source: tirx.Buffer, places: Any, loops: list[tirx.For], rounds: list[tirx.For]) -> Lines:
    """In which rounds of loops, counted from zero, which lines are taken."""
    grid = np.meshgrid(*(np.arange(int(loop.extent)) for loop in loops), indexing="ij", sparse=True)
    values = list(zip((loop.loop_var for loop in loops), grid))
    shape = np.broadcast_shapes(*(each.shape for each in grid))
    offset, number = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for place, size in zip(places, source.shape):
        offset = offset * int(size) + value(place, values)
    for loop in rounds:
        number = number * int(loop.extent) + value(loop.loop_var, values)
    return set(zip(number.ravel().tolist(), (offset // LINE).ravel().tolist()))


def value(expression: Expr, values: list[tuple[tirx.Var, Integers]]) -> Any:
    """What an index is at all steps."""
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    if isinstance(expression, tirx.Var):
        return next(each for var, each in values if var.same_as(expression))
    return OPERATIONS[type(expression)](value(expression.a, values), value(expression.b, values))
