"""What is packed before all work items is packed by many threads, and only where there is room; there are enough work
items; cache blocks stay in the caches that they are made for."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer

from tests.support.cpu.cpus import CPUS, Cpu
from tvmconvgrad.spec import Problem

LEVELS = [cpu for cpu in CPUS if cpu.name in ("x86-64-v3", "x86-64-v4")]
L1, LINE, SETS, WAYS = 32 << 10, 64, 64, 8
"""A core's first cache."""


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("positions", [(1568,), (31, 47)], ids=str)
def test_images_that_are_merged_into_one_row_are_packed_by_many_work_items(
    cpu: Cpu, positions: tuple[int, ...]
) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad import schedules
    from tvmconvgrad.spec.reducing.merging import merged
    from tvmconvgrad.tir.rewriting import nodes

    ones, pads = (1,) * len(positions), (0,) * len(positions)
    operator = cg.ConvolutionBackpropFilters(
        strides=ones, pads_begin=pads, pads_end=pads, dilations=ones, filter_shape=(*ones, 1024, 1024)
    )
    problem = merged(operator.problem((1, *positions, 1024), (1, *positions, 1024), dtype="f32"))
    assert len(problem.geometry.y) == 1
    scheduled = schedules.schedule(problem, cpu.target, "weights-o")
    assert "before" in scheduled.plan["packs"]
    loops = [loop for loop in nodes(scheduled.module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
    packing = [loop for loop in loops if any("padded" in block.name_hint for block in nodes(loop, SBlock))]
    assert packing and all(int(loop.extent) >= 16 for loop in packing)


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_without_room_for_the_filter_as_f32_work_items_pack_parts_of_it(dtype: str, cpu: Cpu) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad.compiler.llvm import build
    from tvmconvgrad.spec.reducing.merging import merged

    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1), output_shape=(8, 7, 7, 2048)
    )
    problem = merged(operator.problem((8, 7, 7, 512), (1, 1, 2048, 512), dtype=dtype))
    built = build(problem, cpu.target, "data-channels")
    assert built.workspace_bytes <= problem.tensor_bytes
    assert dtype == "f32" or "packs_filter=work_item" in str(built.scheduled)


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    "name", ["unet_3d up2 filters", "unet_3d up2_1 filters", "dcgan draw2 filters", "dcgan draw1 data", "unet up2 data"]
)
def test_operands_of_16_bits_need_no_more_memory_as_f32_than_the_tensors(name: str, dtype: str, cpu: Cpu) -> None:
    from tvmconvgrad.compiler.llvm import build

    problem = _problem(name, dtype)
    assert build(problem, cpu.target).workspace_bytes <= problem.tensor_bytes


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("name", ["deeplab block4_reduce data", "deeplab block4b_reduce data"])
def test_what_a_work_item_packs_beside_the_filter_has_room(name: str, cpu: Cpu) -> None:
    from tvmconvgrad.compiler.llvm import build

    problem = _problem(name, "f16", "NCX", "OIX")
    assert build(problem, cpu.target).workspace_bytes <= problem.tensor_bytes


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["vgg_19 conv5_1 filters", "deeplab aspp_dilated18 filters", "unet down4_2 filters"])
def test_blocks_that_end_inside_of_a_range_make_no_sums_of_all_the_filter(name: str, dtype: str) -> None:
    """On a CPU with 16 lanes, whose tiles of 6 channels suit neither 256 channels nor 512."""
    from tvmconvgrad.compiler.llvm import build

    problem = _problem(name, dtype, "NCX", "OIX")
    assert build(problem, LEVELS[-1].target).workspace_bytes <= problem.tensor_bytes


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize(
    "name", ["resnet_50 res4a_branch2b filters", "deeplab aspp_dilated6 data", "vgg_19 conv3_2 filters"]
)
def test_a_prime_number_of_blocks_leaves_enough_work_items(name: str, cpu: Cpu) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.tir.rewriting import nodes

    problem = _problem(name, "f16")
    loops = [
        loop
        for loop in nodes(schedules.schedule(problem, cpu.target).module, tirx.For)
        if loop.kind == tirx.ForKind.PARALLEL
    ]
    summing = [loop for loop in loops if any("sum" in block.name_hint for block in nodes(loop, SBlock))]
    assert summing and all(int(loop.extent) >= 9 for loop in summing)


@pytest.mark.parametrize(
    ("channels", "taps", "stride", "pad", "in_place"),
    [
        ((256, 64), 1, 1, 0, True),
        ((256, 64), 1, 2, 0, True),
        ((256, 128), 2, 2, 0, True),
        ((64, 256), 1, 1, 0, True),  # few tiles of c read y
        ((256, 64), 3, 1, 0, False),  # nine taps read each row
        ((256, 128), 2, 2, 1, False),
        ((1024, 1024), 1, 1, 0, False),  # sixteen tiles of o read it
    ],
)
def test_rows_that_few_tiles_read_are_not_packed(
    channels: tuple[int, int], taps: int, stride: int, pad: int, in_place: bool
) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad import schedules

    x = 12 * stride + taps - stride - 2 * pad
    numbers = {"strides": (stride,) * 2, "pads_begin": (pad,) * 2, "pads_end": (pad,) * 2, "dilations": (1, 1)}
    operator = cg.ConvolutionBackpropFilters(**numbers, filter_shape=(taps, taps, *channels))
    problem = operator.problem((2, x, x, channels[0]), (2, 12, 12, channels[1]), dtype="f32")
    plan = schedules.schedule(problem, LEVELS[-1].target, "weights-o").plan
    assert ((plan["c_block"], plan["o_block"]) == (0, 0)) == in_place


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("mobilenet_v2 block1_project filters", True),
        ("resnet_50 res2a_branch2a filters", True),
        ("resnet_50 res3a_branch2b filters", False),  # nine taps read each chunk
        ("resnet_50 res3a_branch2c filters", False),
    ],
)
def test_products_of_few_channels_pack_cache_blocks_for_l1(name: str, stays: bool, dtype: str, cpu: Cpu) -> None:
    from tvmconvgrad import schedules

    problem = _problem(name, dtype)
    plan = schedules.schedule(problem, cpu.target).plan
    packed = 4 * prod(plan["cache_block"]) * (problem.geometry.c + problem.geometry.o)
    assert (packed <= L1) == stays


@pytest.mark.parametrize("layouts", [("NXC", "XIO"), ("NCX", "OIX")], ids=lambda layouts: layouts[0])
def test_tiles_of_few_positions_are_added_up_in_parts(layouts: tuple[str, str]) -> None:
    """Of three positions fewest products meet pads; they read small panels."""
    from tvmconvgrad import schedules

    problem = _problem("deeplab aspp_dilated12 data", "f32", *layouts)
    plan = schedules.schedule(problem, LEVELS[-1].target).plan
    assert plan["k_cache_blocks"] > 1
    assert plan["tile"]["positions"] == 3


@pytest.mark.parametrize("cpu", LEVELS, ids=str)
@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("resnet_50 conv1 filters", 1),
        ("resnet_50 res2a_branch2b filters", 1),
        ("resnet_50 res3a_branch2b filters", 1),
        ("wavenet dilated1 filters", 1),
        ("unet up2 filters", 2),  # vectors over c, of each second position
    ],
)
def test_what_a_tile_reads_of_a_cache_block_stays_in_l1(name: str, apart: int, cpu: Cpu) -> None:
    from tvmconvgrad import schedules

    plan = schedules.schedule(_problem(name, "f32"), cpu.target, "weights-c" if apart > 1 else "weights-o").plan
    panels = 4 * prod(plan["cache_block"]) * (apart * plan["tile"]["c"] + plan["tile"]["o"])
    assert panels <= L1


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("resnet_50 res2a_branch1 filters", "c"),  # 64 channels c, 256 o
        ("convnext_t stage1_expand filters", "c"),
        ("convnext_t stage1_project filters", "o"),  # the other way round
        ("mobilenet_v2 block5_expand filters", "o"),  # 64 and 384, in the cache
    ],
)
def test_vectors_of_products_from_memory_lie_over_the_narrow_rows(name: str, lanes: str) -> None:
    from tvmconvgrad import schedules

    plan = schedules.schedule(_problem(name, "f32"), LEVELS[-1].target).plan
    assert plan["tile"]["vector_axis"] == lanes


def test_the_fewer_products_meet_data_the_longer_are_cache_blocks() -> None:
    """At 18 positions from the middle most taps meet nothing but pads, which are left out."""
    from tvmconvgrad import schedules

    near, far = (
        schedules.schedule(_problem(f"deeplab aspp_dilated{dilation} filters", "f32"), LEVELS[-1].target).plan
        for dilation in (6, 18)
    )
    assert prod(near["cache_block"]) < prod(far["cache_block"])


@pytest.mark.parametrize("channels", [32, 96, 192, 384, 576])
def test_depthwise_cache_blocks_of_half_lines_keep_all_their_rows(channels: int) -> None:
    """The next tile reads the other halves. Lines of one channel lie so far apart that they share sets of the cache."""
    import tvmconvgrad as cg
    from tvmconvgrad import schedules

    (cpu,) = (cpu for cpu in LEVELS if cpu.lanes == 8)
    ones, size = (1, 1), (28, 28)
    operator = cg.ConvolutionBackpropFilters(
        strides=ones, pads_begin=ones, pads_end=ones, dilations=ones, groups=channels, filter_shape=(3, 3, 1, channels)
    )
    problem = operator.problem((4, *size, channels), (4, *size, channels), dtype="f32")
    plan = schedules.schedule(problem, cpu.target, "weights-groups").plan
    assert plan["tile"]["groups"] == 8
    _, rows, columns = plan["cache_block"]
    positions = [(row, column) for row in range(rows + 2) for column in range(columns)]
    x = [(row * size[1] + column) * channels * 4 // LINE for row, column in positions]
    y = [line + 10**6 for line in x[: rows * columns]]
    fullest = max(Counter(line % SETS for line in (*x, *y)).values())
    assert fullest <= 2 * WAYS  # the two tensors begin anywhere


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("mobilenet_v2 block2_depthwise filters", 8),
        ("mobilenet_v2 block3_depthwise filters", 8),
        ("mobilenet_v2 block4_depthwise filters", 16),  # the cache holds its tensors
        ("mobilenet_v2 block3b_depthwise filters", 16),  # a position brings a line of each row
    ],
)
def test_strided_depthwise_tiles_fetch_lines_from_memory_twice(name: str, groups: int) -> None:
    """On a CPU with 16 lanes: those of half a line do."""
    from tvmconvgrad import schedules

    plan = schedules.schedule(_problem(name, "f32"), LEVELS[-1].target).plan
    assert plan["tile"]["groups"] == groups


@pytest.mark.parametrize("name", ["resnet_50 res3a_branch2b filters", "dcgan draw3 filters"])
def test_work_items_follow_each_other_as_they_lie_in_the_filter(name: str) -> None:
    """Threads that take neighbouring work items each then don't write beside each other."""
    from tvmconvgrad import schedules
    from tvmconvgrad.tir.rewriting import nodes, replaced

    problem = _problem(name, "f32")
    scheduled = schedules.schedule(problem, LEVELS[-1].target)
    (loop,) = [loop for loop in nodes(scheduled.module, tirx.For) if _sums_in_parallel(loop)]
    (added,) = [each for each in nodes(loop, SBlockRealize) if each.block.name_hint == "sum"]
    *_, c, o = added.iter_values
    zero = {var: tirx.const(0, "int64") for var in nodes(tirx.Evaluate(c + o), tirx.Var)}
    place = {"C": c, "O": o}
    found = [
        [
            int(Analyzer().simplify(replaced(place[axis], {**zero, loop.loop_var: tirx.const(task, "int64")})))
            for axis in problem.filter_axes
            if axis != "X"
        ]
        for task in range(int(loop.extent))
    ]
    assert len({first for first, _ in found}) > 1
    assert len({second for _, second in found}) > 1
    assert found == sorted(found)


def _sums_in_parallel(loop: tirx.For) -> bool:
    from tvmconvgrad.tir.rewriting import nodes

    blocks = [block.name_hint for block in nodes(loop, SBlock)]
    return loop.kind == tirx.ForKind.PARALLEL and "sum" in blocks


def _problem(name: str, dtype: str, data_format: str = "NXC", filter_format: str = "XIO") -> Problem:
    """The problem of "suite layer kind", as it is compiled."""
    from tvmconvgrad import layers
    from tvmconvgrad.layers.layer import make_gradient
    from tvmconvgrad.spec.reducing.merging import merged

    suite, layer_name, kind = name.split()
    (layer,) = [each for each in layers.suite(suite) if each.name == layer_name]
    return merged(make_gradient(layer, kind, data_format, filter_format, dtype).problem)


@pytest.mark.parametrize("name", ["deeplab aspp_dilated12 forward", "deeplab aspp_dilated18 forward"])
def test_padding_of_wide_dilations_is_not_packed(name: str) -> None:
    from tvmconvgrad.compiler.llvm import build

    problem = _problem(name, "f32", "NXC", "XIO")
    built = build(problem, LEVELS[-1].target)
    assert built.scheduled.plan["packs"] == "before"
    assert built.workspace_bytes <= problem.tensor_bytes


@pytest.mark.parametrize(("channels", "filters", "packed"), [(512, 1024, True), (96, 64, False)])
def test_large_filters_are_packed_for_few_positions(channels: int, filters: int, packed: bool) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.layers import Layer

    sizes = {"input_size": (12, 12), "kernel": (3, 3), "pads_begin": (1, 1), "pads_end": (1, 1)}
    layer = Layer(name="a", batch=1, channels=channels, filters=filters, **sizes)  # type: ignore[arg-type]
    plan = schedules.schedule(layer.select("forward").problem, LEVELS[-1].target, "data-channels").plan
    assert bool(plan["packs_filter"]) == packed


@pytest.mark.parametrize("dilation", [4, 64])
def test_work_items_seldom_pack_what_their_neighbours_pack(dilation: int) -> None:
    """Of 4001 tiles of 4 positions, say, no few divide the row; and each alone would pack 4 + 4 positions."""
    from tvmconvgrad import schedules

    problem = _problem(f"wavenet dilated{dilation} data", "f32", "NCX", "OIX")
    plan = schedules.schedule(problem, LEVELS[-1].target).plan
    covered = plan["partition_tiles"] * plan["tile"]["positions"]  # type: ignore[operator,call-overload]
    assert plan["packs"] == "before" or plan["n_partitions"] * (covered + dilation) < 1.5 * covered  # type: ignore[operator]


@pytest.mark.parametrize("tile", range(8))
def test_parts_are_added_up_aside_where_rows_end_inside_of_a_tile(tile: int) -> None:
    from tvmconvgrad import schedules

    problem = _problem("deeplab block4_expand data", "f32", "NCX", "OIX")
    found = schedules.schedule(problem, LEVELS[-1].target, "data-channels", {"tile": tile})
    assert found.work_items > 1


@pytest.mark.parametrize(("rule", "vectors"), [("weights-c", 0), ("weights-o", 1)])
@pytest.mark.parametrize("channels", [(128, 3), (3, 128), (64, 64)], ids=str)
def test_in_ncx_only_vectors_are_transposed(channels: tuple[int, int], rule: str, vectors: int) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.layers import Layer

    layer = Layer(name="a", batch=8, input_size=(14, 14), channels=channels[0], filters=channels[1], kernel=(1, 1))
    problem = layer.select("filters", dtype="f16", data_format="NCX").problem
    plan = schedules.schedule(problem, LEVELS[-1].target, rule).plan
    blocks = plan["c_block"], plan["o_block"]
    assert blocks[vectors] >= plan["tile"][rule[-1]] > 1 and blocks[1 - vectors] == 1  # type: ignore[index,operator]
