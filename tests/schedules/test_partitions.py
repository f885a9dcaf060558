"""How sums are split into work items, and those of weights gradients into cache blocks."""

from __future__ import annotations

from math import prod

import pytest
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize

import tvmconvgrad as cg
from tests.support.cpu.amx import AMX
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cpu.data.sizes import WORK_ITEMS
from tvmconvgrad.schedules.cpu.weights.access import LEAST_CACHE_BLOCK
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.tir.rewriting import nodes, replaced, uses

TARGET = "llvm -mcpu=sapphirerapids -mtriple=x86_64-linux-gnu"


def data_gradient(batch: int, channels: tuple[int, int], size: int, k: int, dtype: str = "f32") -> Problem:
    """A data gradient in NCX of one axis without padding, from the second number of channels to the first."""
    operator = cg.ConvolutionBackpropData(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), data_format="NCX", filter_format="OIX"
    )
    c, o = channels
    return operator.problem((batch, o, size), (o, c, k), dtype=dtype)


def depthwise(groups: int, size: int, stride: int) -> Problem:
    """A depthwise data gradient in NCX of two axes of `size`, with 3 taps each."""
    pads = {"strides": (stride,) * 2, "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
    operator = cg.ConvolutionBackpropData(**pads, data_format="NCX", filter_format="OIX", groups=groups)
    of_y = (16, groups, *(-(-size // stride),) * 2)
    return operator.problem(of_y, (groups, 1, 3, 3), shape_input=(16, groups, size, size), dtype="f32")


def planned(problem: Problem, rule: str | None = None) -> Scheduled:
    return schedules.schedule(problem, parse_target(TARGET), rule)


@pytest.mark.parametrize("rule", ["data-positions", "data-channels"])
@pytest.mark.parametrize(("channels", "size", "k"), [(8, 2048, 3), (16, 1024, 3), (32, 4096, 9), (64, 16000, 2)])
def test_a_single_image_has_enough_work_items(channels: int, size: int, k: int, rule: str) -> None:
    found = planned(data_gradient(1, (channels, channels), size, k), rule)
    assert found.work_items >= WORK_ITEMS


@pytest.mark.parametrize(("c", "o"), [(64, 128), (256, 64)])
def test_rows_that_split_badly_are_not_taken_by_short_parts(c: int, o: int) -> None:
    plan = planned(data_gradient(2, (c, o), 16000, 2)).plan
    assert 4 * plan["tile"]["positions"] * plan["partition_tiles"] >= 1024


@pytest.mark.parametrize("rule", ["data-tiles", "data-tiles-positions"])
def test_in_tile_registers_fewer_work_items_spare_short_parts(rule: str) -> None:
    problem = data_gradient(2, (256, 64), 16000, 2, "bf16")
    found = schedules.schedule(problem, parse_target(AMX), rule)
    assert 2 * found.plan["tile"]["positions"] * found.plan["partition_tiles"] >= 1024
    assert found.work_items >= WORK_ITEMS // 2


def test_rows_that_several_work_items_pack_cost_that_in_tile_registers() -> None:
    """Of 8 images, as of Inception's 1x7 layer: three partitions of channels would each pack all rows."""
    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), dilations=(1, 1), pads_begin=(0, 3), pads_end=(0, 3), data_format="NCX", filter_format="OIX"
    )
    problem = reduced(operator.problem((8, 192, 17, 17), (192, 128, 1, 7), dtype="bf16"))
    assert schedules.schedule(problem, parse_target(f"{TARGET} -mattr=+amx-bf16")).rule == "data-tiles"


def test_short_parts_are_taken_if_they_are_whole_lines() -> None:
    plan = planned(data_gradient(2, (64, 8), 97 * 96, 1)).plan
    part = 4 * plan["tile"]["positions"] * plan["partition_tiles"]
    assert plan["non_temporal"] == 1 and part < 1024 and part % 64 == 0


@pytest.mark.parametrize("size", [14, 28])
def test_a_work_item_has_all_phases_of_one_group(size: int) -> None:
    groups = 192
    strided, plain = (planned(depthwise(groups, size, stride), "data-positions").plan for stride in (2, 1))
    assert (strided["non_temporal"], strided["group_partitions"]) == (0, groups)
    assert plain["group_partitions"] < groups


@pytest.mark.parametrize(("size", "planes"), [(29, 16), (58, 4), (64, 1)])
def test_staged_planes_are_whole_lines_together(size: int, planes: int) -> None:
    plan = planned(depthwise(192, size, 2), "data-positions").plan
    assert (plan["non_temporal"], 192 // plan["group_partitions"]) == (1, planes)


def test_staged_planes_of_a_work_item_fit_half_of_l1() -> None:
    plan = planned(depthwise(768, 28, 2), "data-positions").plan
    planes = 768 // plan["group_partitions"]
    assert plan["non_temporal"] == 1
    assert planes > 1 and 4 * 28 * 28 * planes <= 24 << 10


def weights_gradient(
    batch: int, channels: tuple[int, int], size: int, k: int, stride: int, data_format: str, dtype: str
) -> Problem:
    """A weights gradient of two axes whose pads keep the size, or, with stride 2, halve it."""
    y, pad = (size - 1) // stride + 1, k // 2
    pads = {"pads_begin": (pad,) * 2, "pads_end": ((y - 1) * stride + k - size - pad,) * 2}
    operator = cg.ConvolutionBackpropFilters(
        strides=(stride,) * 2, dilations=(1, 1), **pads, data_format=data_format, filter_shape=(k, k, *channels)
    )
    shapes = ((batch, *(extent,) * 2, count) for count, extent in zip(channels, (size, y)))
    first, second = (shape if data_format == "NXC" else (batch, shape[-1], *shape[1:-1]) for shape in shapes)
    return reduced(operator.problem(first, second, dtype=dtype))


@pytest.mark.parametrize(("dtype", "target"), [("f32", TARGET), ("bf16", AMX)])
@pytest.mark.parametrize(("data_format", "k", "stride"), [("NXC", 3, 1), ("NCX", 3, 1), ("NCX", 1, 1), ("NXC", 3, 2)])
@pytest.mark.parametrize("size", [13, 17])
def test_a_cache_block_of_an_image_with_few_divisors_is_no_single_row(
    size: int, data_format: str, k: int, stride: int, dtype: str, target: str
) -> None:
    problem = weights_gradient(8, (128, 128), size * stride, k, stride, data_format, dtype)
    found = schedules.schedule(problem, parse_target(target), "weights-tiles" if dtype == "bf16" else "weights-o")
    assert prod(found.plan["cache_block"]) >= LEAST_CACHE_BLOCK
    assert found.work_items >= 16


@pytest.mark.parametrize(
    ("problem", "target"),
    [
        (weights_gradient(1, (16, 16), 31, 3, 1, "NCX", "bf16"), TARGET),
        (weights_gradient(2, (32, 256), 13, 3, 2, "NCX", "bf16"), AMX),
        (weights_gradient(1, (64, 64), 25, 3, 2, "NXC", "bf16"), AMX),
        (weights_gradient(1, (16, 32), 17, 1, 1, "NCX", "bf16"), AMX),
    ],
    ids=["31 x 31", "13 x 13, strided", "25 x 25, strided", "17 x 17"],
)
def test_small_problems_need_no_more_workspace_than_their_tensors_have_bytes(problem: Problem, target: str) -> None:
    assert llvm.build(problem, parse_target(target)).workspace_bytes <= problem.tensor_bytes


def test_depthwise_layers_keep_their_cache_blocks() -> None:
    operator = cg.ConvolutionBackpropFilters(
        strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 1, 960), groups=960
    )
    plan = planned(operator.problem((16, 7, 7, 960), (16, 7, 7, 960), dtype="f32")).plan
    assert plan["tile"]["groups"] > 1 and plan["cache_block"] == (1, 1, 7)


@pytest.mark.parametrize("target", [TARGET, AMX])
def test_partial_sums_of_groups_are_added_by_contiguous_vectors(target: str) -> None:
    """Of ResNeXt's conv4a_grouped: along the channels of a group, not across groups."""
    pads = {"strides": (2, 2), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
    operator = cg.ConvolutionBackpropFilters(**pads, data_format="NCX", groups=32, filter_shape=(3, 3, 16, 512))
    problem = reduced(operator.problem((8, 512, 28, 28), (8, 512, 14, 14), dtype="bf16"))
    rule = "weights-tiles" if target == AMX else "weights-o"
    found = schedules.schedule(problem, parse_target(target), rule, {"split_k": 2})
    loops = [loop for loop in nodes(found.module, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    (adding,) = [loop for loop in loops if [block.name_hint for block in nodes(loop, SBlock)] == ["sum"]]
    (realize,) = nodes(adding, SBlockRealize)
    stored = realize.block.writes[0].region[-1].min
    values = {each.var: value for each, value in zip(realize.block.iter_vars, realize.iter_values)}
    assert uses(replaced(stored, values), adding.loop_var)
