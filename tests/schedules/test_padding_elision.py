"""Products with pads are left out: where a tile meets nothing else at a tap, an infinite value makes no NaN of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.building.scheduled import computed, run
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.host import host_features
from tvmconvgrad.machines.targets import parse_target

FAR = 300
"""A dilation with which the outer taps meet pads alone, also at what a tile computes beyond the end of an axis."""

CONVOLUTIONS = {
    "1-D": Convolution(2, 1, 16, 32, (11,), (11,), (3,), (1,), (FAR,), (FAR,), (FAR,)),
    "along one axis": Convolution(1, 1, 17, 35, (6, 9), (6, 9), (3, 3), (1, 1), (1, FAR), (1, FAR), (1, FAR)),
    "along both": Convolution(1, 1, 16, 32, (7, 6), (7, 6), (3, 3), (1, 1), (9, FAR), (9, FAR), (9, FAR)),
    "depthwise": Convolution(1, 24, 24, 24, (8, 7), (8, 7), (3, 3), (1, 1), (9, FAR), (9, FAR), (9, FAR)),
}


def meets_pads(conv: Convolution) -> Array:
    """For each tap, whether it meets nothing else: along some axis it is an outer one, and beyond the data."""
    axes = zip(conv.k, conv.dilations, conv.x, strict=True)
    along = [[dilation >= size and tap != taps // 2 for tap in range(taps)] for taps, dilation, size in axes]
    return np.any(np.meshgrid(*along, indexing="ij"), axis=0)


def results(case: Case, tensors: Tensors) -> dict[str, Array]:
    """By the names of the rules whose tiles read each tap by itself, what they make of operands, canonical."""
    import tvmconvgrad

    call, target = case.call, parse_target(None)
    operator: Any = getattr(tvmconvgrad, call.operator)(**call.attributes)
    problem = operator.problem(*call.shapes, call.shape_input, call.dtype)
    found = {rule: schedules.schedule(problem, target, rule) for rule in schedules.applicable(problem, target)}
    alone = {rule: one for rule, one in found.items() if not any(tap > 1 for tap in _taps(one.plan["tile"]))}
    arrays, axes = case.arrays(tensors), case.axes(case.result)
    return {rule: layouts.to_canonical(run(one, arrays, target), axes) for rule, one in alone.items()}


def _taps(tile: Any) -> Any:
    return tile.get("taps", ())


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("operator", ["ConvolutionBackpropData", "ConvTransposeBackpropData"])
def test_an_infinite_filter_adds_nothing_where_it_meets_pads(operator: str, name: str) -> None:
    conv = CONVOLUTIONS[name]
    case, apart = Case(operator, conv), meets_pads(conv)
    tensors = operands(conv, case.result)
    tensors["w"][..., apart] = 0
    expected = reference.gradient(conv, case.result, tensors).astype(np.float32)
    assert expected.any()
    tensors["w"][..., apart] = np.inf
    found = results(case, tensors)
    assert len(found) > 1
    for got in found.values():
        assert_same(got, expected)


ROWS = {
    "one tile": Convolution(4, 1, 32, 32, (7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "two tiles": Convolution(10, 1, 24, 64, (3, 12), (3, 12), (1, 3), (1, 1), (1, 1), (0, 1), (0, 1)),
    "tiles between them": Convolution(10, 1, 64, 64, (3, 60), (3, 60), (1, 5), (1, 1), (1, 1), (0, 2), (0, 2)),
    "far taps": Convolution(28, 1, 16, 32, (9,), (9,), (3,), (1,), (4,), (4,), (4,)),
    "strides": Convolution(12, 1, 32, 48, (9, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "1-D, 5 taps": Convolution(28, 1, 32, 32, (12,), (12,), (5,), (1,), (1,), (2,), (2,)),
    "3-D": Convolution(3, 1, 16, 32, (3, 4, 6), (3, 4, 6), (1, 3, 3), (1,) * 3, (1,) * 3, (0, 1, 1), (0, 1, 1)),
    "groups": Convolution(4, 2, 64, 64, (7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
}
LEVELS = ["x86-64-v3", "x86-64-v4", "x86-64-v4 -mattr=+avx512bf16"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("operator", ["ConvolutionBackpropData", "ConvTransposeBackpropData"])
def test_no_position_of_a_row_adds_products_with_pads(operator: str, name: str, level: str) -> None:
    """Of an infinite tap, and data that is nowhere zero, those that a position adds are infinite, and products with
    pads would be NaN. Of other elements each position adds the same as before."""
    target, turn = parse_target(f"llvm -mcpu={level}"), list(ROWS).index(name) + LEVELS.index(level) + len(operator)
    if not llvm.required_features(target) <= host_features():
        pytest.skip(f"this CPU is no {level}")
    conv, dtype = ROWS[name], "bf16" if level == LEVELS[-1] else ("f32", "f16", "bf16")[turn % 3]
    case = Case(operator, conv, dtype=dtype)
    tensors = operands(conv, case.result)
    data = "y" if case.result == "x" else "x"
    tensors[data] = np.abs(tensors[data]) + 1
    # with strides, only the first tap of a forward meets pads
    tensors["w"][..., 0 if name == "strides" else -(turn % 2)] = np.inf
    finite = {**tensors, "w": np.where(np.isinf(tensors["w"]), 0, tensors["w"])}
    meets = reference.gradient(conv, case.result, {**tensors, "w": np.isinf(tensors["w"]).astype(np.float64)}) > 0
    expected = np.where(meets, np.inf, reference.gradient(conv, case.result, finite)).astype(DTYPES[dtype])
    assert np.isinf(expected).any() and np.isfinite(expected).any()
    problem = case.call.problem()
    places = schedules.schedule(problem, target, "data-channels", {"partition_tiles": 64}).candidates.get("packs", [0])
    for packs in places:
        given = {"partition_tiles": 64} | ({"packs": packs} if len(places) > 1 else {})
        made = schedules.schedule(problem, target, "data-channels", given)
        assert made.plan["leaves_out_by_position"] == 1
        assert_same(computed(made, case, tensors, target), expected)


@pytest.mark.parametrize("operator", ["ConvolutionBackpropData", "ConvTransposeBackpropData"])
def test_data_of_a_single_block_is_read_in_place_with_its_padding(operator: str) -> None:
    """With two N blocks it is packed, and so it is for strided reads, which a forward has, or where padding is kept."""
    square = Convolution(4, 1, 32, 32, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    strided = replace(square, y=(7, 7), strides=(2, 2), pads_end=(0, 0))
    target, forward = parse_target("llvm -mcpu=x86-64-v4"), operator.startswith("ConvTranspose")
    packed: dict[str, int] = {"leaves_out_by_position": 0}
    for conv, more, in_place in (
        (square, {}, True),
        (square, packed, False),
        (replace(square, c=256, o=256), {}, False),
        (strided, {}, not forward),
    ):
        problem = Case(operator, conv).call.problem()
        made = schedules.schedule(problem, target, "data-channels", {"partition_tiles": 64, **more})
        assert (made.plan["packs"] == "") is in_place
        assert (f"{made.expression.operands[0]} = T.sblock_alloc_buffer" not in made.module.script()) is in_place


def test_a_row_that_would_be_split_is_a_tile() -> None:
    """In three tiles, each a work item of its own, its padding would be packed, and multiplied."""
    conv = Convolution(1, 1, 512, 16, (20,), (20,), (3,), (1,), (1,), (1,), (1,))
    problem = Case("ConvTransposeBackpropData", conv).call.problem()
    made = schedules.schedule(problem, parse_target("llvm -mcpu=x86-64-v4"), "data-channels")
    assert (made.plan["tile"]["positions"], made.plan["leaves_out_by_position"]) == (20, 1)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("operator", ["ConvolutionBackpropData", "ConvTransposeBackpropData"])
def test_no_condition_is_tested_for_a_product(operator: str, name: str) -> None:
    """Those of a position and a tap along a row are constants; others stand outside of the loops over channels."""
    import tvm
    from tvm import ir, tirx

    from tvmconvgrad.compiler import pipeline
    from tvmconvgrad.tir.rewriting import nodes

    problem = Case(operator, ROWS[name]).call.problem()
    made = schedules.schedule(problem, parse_target("llvm -mcpu=x86-64-v4"), "data-channels", {"partition_tiles": 64})
    passes = tvm.transform.Sequential([*pipeline._plan_memory(), *pipeline._lower_loops()])
    module = passes(made.module)
    panel = made.expression.operands[1]

    def multiplies(part: tirx.Stmt) -> bool:
        return any(load.source.name == panel for load in nodes(part, ir.TensorLoad))

    assert [loop for loop in nodes(module, tirx.For) if multiplies(loop)]
    within = [test for test in nodes(module, tirx.IfThenElse) if not nodes(test, tirx.For)]
    assert not [test for test in within if multiplies(test)]


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "depthwise"])  # its tile spans the taps
def test_an_infinite_element_counts_where_a_tap_meets_data(name: str) -> None:
    conv = CONVOLUTIONS[name]
    case, apart, channel = Case("ConvolutionBackpropFilters", conv), meets_pads(conv), 3
    tensors = operands(conv, "w")
    tensors["x"] = abs(tensors["x"]) + 1
    expected = reference.gradient(conv, "w", tensors).astype(np.float32)
    expected[channel] = np.where(apart, 0, np.inf)
    tensors["y"][(0, channel, *(size // 2 for size in conv.y))] = np.inf
    found = results(case, tensors)
    assert found
    for got in found.values():
        assert_same(got, expected)


def test_no_condition_is_asked_of_a_tile_that_always_meets_data() -> None:
    """The sums, whose N is 32, go by phases over 17 positions, of which each tile takes several, with 2 taps."""
    from tvm import tirx

    from tvmconvgrad.tir.annotations import CONDITION
    from tvmconvgrad.tir.rewriting import nodes, uses

    conv = Convolution(1, 1, 64, 64, (32, 32), (16, 16), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv).call.problem()
    target = parse_target("llvm -mcpu=x86-64-v3")
    tiles = schedules.schedule(problem, target, "data-channels").candidates["tile"]
    made = (schedules.schedule(problem, target, "data-channels", {"tile": tile}) for tile in tiles)
    module = next(each.module for each in made if each.plan["tile"]["positions"] == 2)
    conditions = [mark.value for mark in nodes(module, tirx.AttrStmt) if mark.attr_key == CONDITION]
    taps = {loop.loop_var.name: loop.loop_var for loop in nodes(module, tirx.For)}
    assert any(uses(condition, taps["k_h"]) for condition in conditions)
    assert not any(uses(condition, taps["k_w"]) for condition in conditions)


def test_a_work_item_packs_no_more_than_its_cache_block_reads() -> None:
    """Cache blocks are one of 32 planes: of the data, of which some are pads, three are read."""
    from tvmconvgrad.compiler.llvm import build

    size, pads = (32, 10, 16), (1, 0, 0)
    conv = Convolution(1, 1, 16, 32, size, size, (3, 1, 1), (1,) * 3, (1,) * 3, pads, pads)
    problem = Case("ConvolutionBackpropFilters", conv).with_dtype("f16").call.problem()
    target = parse_target("llvm -mcpu=x86-64-v4")
    plan = str(schedules.schedule(problem, target, "weights-o"))
    assert "packs=('work_item', 'work_item')" in plan
    assert "cache_block=(1, 1, 10, 16)" in plan
    built = build(problem, target, "weights-o")
    both = 4 * 10 * 16 * (3 * 16 + 32)
    assert both <= sum(built.workspace.work_item_sizes) < 1.05 * both  # blocks of channels lie a little apart


def test_loops_of_which_the_last_work_item_has_fewer_steps() -> None:
    """Of a strided and dilated data gradient that leaves out padding: their extents are expressions, no numbers."""
    conv = Convolution(3, 1, 32, 2, (13, 12), (4, 4), (1, 3), (4, 3), (3, 1), (1, 2), (0, 0))
    case, target = Case("ConvolutionBackpropData", conv, filter_format="XOI", dtype="f16"), parse_target(None)
    tensors = operands(conv, case.result)
    made = schedules.schedule(case.call.problem(), parse_target("llvm -mcpu=x86-64-v2"), "data-channels")
    exact = reference.gradient(conv, case.result, tensors)
    assert_same(computed(made, case, tensors, target), exact.astype(DTYPES["f16"]))
