"""What a round packs or reads in place was fetched in the round before, while products were summed: all of it, and not
much else, and a few lines at a time."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tvm import DataType, tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir.stmt import SBlockRealize

from tests.support.cpu.cpus import CPUS, Cpu
from tvmconvgrad.schedules.transforms.software_pipelining import AT_ONCE
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


@pytest.mark.parametrize("side", (7, 14))
@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("rule", ("weights-o", "weights-c"))
def test_rows_shorter_than_a_line_are_fetched_together(rule: str, cpu: Cpu, side: int) -> None:
    module = of_small_images(rule, cpu, side, "f16")
    for name, source in (("x_padded", "input_forward"), ("y_padded", "output_delta")):
        assert_fetches_next(module, name, source)


@pytest.mark.parametrize("side", (7, 14))
@pytest.mark.parametrize(
    ("rule", "name", "source"), [("weights-o", "x_padded", "input_forward"), ("weights-c", "y_padded", "output_delta")]
)
def test_what_a_weights_gradient_broadcasts_in_place_is_fetched_before(
    rule: str, name: str, source: str, side: int
) -> None:
    module = of_small_images(rule, LEVELS[-1], side, "f32")
    assert not packs(module, name)
    assert_fetches_first(module, source, depth=2)


def of_small_images(rule: str, cpu: Cpu, side: int, dtype: str) -> IRModule:
    """The weights gradient of a 1x1 layer in NCX."""
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
    problem = op.problem((8, 128, side, side), (8, 256, side, side), dtype=dtype)
    wanted = {"packs": 0, "blocks": 3, "c_partitions": 1, "o_partitions": 1}
    return scheduled(problem, cpu, rule, wanted, merges=False)


def packs(module: IRModule, name: str) -> bool:
    return any(each.block.name_hint == name for each in nodes(module, SBlockRealize))


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
    module = scheduled(problem, LEVELS[-1], rule, {"partition_tiles": 8, "n_partitions": 1})
    assert not packs(module, "y_padded")
    assert_fetches_first(module, "output_delta", depth=1 if rule == "data-channels" else 4)


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


def assert_fetches_first(module: IRModule, source: str, depth: int) -> None:
    """Whether the rounds of the outermost `depth` loops but the last fetch the lines of `source` that sums read in
    place for the first time one round later, not much else, and a few at each step."""
    updates = [each for each in nodes(module, SBlockRealize) if each.block.name_hint.endswith("_update")]
    fetches = [each for each in nodes(module, tirx.Evaluate) if each.value.op.name == "tirx.prefetch"]
    fetches = [each for each in fetches if loaded(each).source.name == source]
    assert updates and fetches
    (load,) = [each for each in nodes(updates[0].block.body, TensorLoad) if each.source.name == source]
    bound = dict(zip((each.var for each in updates[0].block.iter_vars), updates[0].iter_values))
    around = loops_around(module, updates[0])
    reads = lines(load.source, [replaced(place, bound) for place in load.indices], around, around[:depth])
    first = {line: number for number, line in sorted(reads, reverse=True)}

    def fetched(rounds: list[tirx.For]) -> Lines:
        places = [(loaded(each).indices, loops_around(module, each)) for each in fetches]
        return set().union(*(lines(load.source, indices, loops, rounds) for indices, loops in places))

    later = {(number - 1, line) for line, number in first.items() if number > 0}
    assert later and later <= fetched(around[:depth])
    assert len(fetched(around[:depth])) < 1.5 * len(reads)
    steps = [loop for loop in around if any(each.same_as(loop) for each in loops_around(module, fetches[0]))]
    assert max(Counter(step for step, _ in fetched(steps)).values()) <= 2 * AT_ONCE


def loaded(node: Any) -> TensorLoad:
    return nodes(node, TensorLoad)[-1]


def loops_around(module: IRModule, wanted: Any) -> list[tirx.For]:
    """The outermost first."""
    found = nodes(module, tirx.For)
    return [loop for loop in found if any(each.same_as(wanted) for each in nodes(loop.body, type(wanted)))][::-1]


def lines(source: tirx.Buffer, places: Any, loops: list[tirx.For], rounds: list[tirx.For]) -> Lines:
    """In which rounds of loops, counted from zero, which lines are taken."""
    line = LINE * 32 // DataType(str(source.dtype)).bits
    grid = np.meshgrid(*(np.arange(int(loop.extent)) for loop in loops), indexing="ij", sparse=True)
    values = list(zip((loop.loop_var for loop in loops), grid))
    shape = np.broadcast_shapes(*(each.shape for each in grid))
    offset, number = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for place, size in zip(places, source.shape):
        offset = offset * int(size) + value(place, values)
    for loop in rounds:
        number = number * int(loop.extent) + value(loop.loop_var, values)
    return set(zip(number.ravel().tolist(), (offset // line).ravel().tolist()))


def value(expression: Expr, values: list[tuple[tirx.Var, Integers]]) -> Any:
    """What an index is at all steps."""
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    if isinstance(expression, tirx.Var):
        return next(each for var, each in values if var.same_as(expression))
    return OPERATIONS[type(expression)](value(expression.a, values), value(expression.b, values))
