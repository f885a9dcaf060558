"""Memory is fetched before it is used: what instructions a kernel has for it, how many, and for which addresses."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tests.support.cpu.assembly import Operand, count, operands, saves, simple_loops
from tests.support.cpu.cpus import CPUS, Build
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.tir.rewriting import nodes, replaced

BY_NAME = {cpu.name: cpu for cpu in CPUS}
LEVELS = ("x86-64-v3", "x86-64-v4")


def compiled(level: str, name: str, rule: str, **decisions: int) -> tuple[str, Any, list[int]]:
    """The assembly of a kernel, its plan, and how many bytes each input's positions lie apart."""
    from tvmconvgrad import schedules
    from tvmconvgrad.compiler import llvm

    build = Build(BY_NAME[level], name)
    scheduled = schedules.schedule(build.problem, build.target, rule, decisions)
    built = llvm.build_scheduled(scheduled, build.target)
    rows = [4 * shape[-1] for shape in build.problem.input_shapes]
    return built.executable.mod.inspect_source("s"), built.scheduled.plan, rows


def prefetched(code: str) -> list[Operand]:
    return operands(code, r"prefetch\w+")


@pytest.mark.parametrize("level", LEVELS)
def test_a_tile_fetches_its_rows_of_the_next_tile(level: str) -> None:
    # the best tile that divides 98 positions, so that data is read in place
    code, plan, (row, _) = compiled(level, "1x1 data", "data-channels", tile=1 if level == "x86-64-v3" else 0)
    assert plan["packs"] == ""
    found, rows = prefetched(code), plan["tile"]["positions"]
    assert len({base for _, base in found}) == 1  # where the tile's own rows begin
    runs = range(len(found) // rows)  # of channels, where LLVM has unrolled their loop; each is a cache line
    assert len({at % 64 for at, _ in found}) == 1  # the channel that the first iteration ends with
    lines = sorted(at // 64 for at, _ in found)
    assert lines == sorted(run + (rows + i) * row // 64 for run in runs for i in range(rows))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rule", ["weights-o", "weights-c"])
def test_a_position_fetches_both_inputs_of_the_next_cache_block(level: str, rule: str) -> None:
    code, plan, rows = compiled(level, "1x1 filters", rule)
    assert (plan["c_block"], plan["o_block"]) == (0, 0)
    found, read = prefetched(code), set(operands(code, r"v(?!mov\w+\s+%)\w+"))
    assert found
    ahead = prod(plan["cache_block"])
    met = [(at - ahead * row, base, row) for at, base in found for row in rows if (at - ahead * row, base) in read]
    # where LLVM adds the distance before the loop, to a register of its own, the positions of both fetches tell the row
    own = {(at, base) for at, base in found if all(base != known for _, known in read)}
    apart = {abs(at - other) for at, base in own for other, same in own if same == base and other != at}
    assert len(met) + len(own) == len(found)
    assert {row for _, _, row in met} | apart == set(rows)
    later, bases = {(at, base) for at, base, _ in met}, {base for _, base, _ in met}
    vectors = [(at, base) for at, base in operands(code, r"vmovups(?!\s+%)") if base in bases]
    width = 4 * BY_NAME[level].lanes
    assert len(vectors) > 1
    assert all(any((at + part, base) in later for part in range(0, 64, width)) for at, base in vectors)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("images", "side"), [(64, 56), (256, 31), (1024, 14), (2, 56)])
def test_rows_in_place_fetch_each_channel_where_the_tensors_come_from_memory(
    level: str, images: int, side: int
) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.spec.reducing import reduced

    pads: dict[str, Any] = {"pads_begin": (0, 0), "pads_end": (0, 0)}
    operator = cg.ConvolutionBackpropFilters(
        **pads, strides=(1, 1), dilations=(1, 1), data_format="NCX", filter_shape=(1, 1, 16, 32)
    )
    problem = reduced(operator.problem((images, 16, side, side), (images, 32, side, side), dtype="f32"))
    built = llvm.build(problem, BY_NAME[level].target, "weights-rows")
    plan, found = built.scheduled.plan, set(prefetched(built.assembly()))
    tile, channel = plan["tile"], 4 * side * side
    if images == 2:  # caches hold both tensors
        assert (plan["prefetch"], found) == (0, set())
        return
    block_images, vectors = plan["cache_block"]
    assert plan["prefetch"] == vectors * tile["lanes"] >= 128
    is_part_of_row = plan["prefetch"] < side * side
    ahead = f"+ T.int64({plan['prefetch']})]" if is_part_of_row else f"+ T.int64({block_images}), "
    fetches = [line for line in built.scheduled.module.script().splitlines() if "T.prefetch(" in line]
    assert fetches and all(ahead in line for line in fetches)
    for base in {base for _, base in found}:
        rows = sorted({at // channel for at, same in found if same == base})
        assert len(rows) > 1 and rows == list(range(rows[0], rows[-1] + 1))
    assert len(found) % (tile["c"] + tile["o"]) == 0


def filters(level: str, filter_shape: tuple[int, ...], images: int, groups: int = 1) -> tuple[str, Any]:
    """The assembly of a weights gradient on images of 14 positions along each axis, and its plan."""
    from tvmconvgrad.compiler import llvm

    built = llvm.build(filters_problem(filter_shape, images, groups), BY_NAME[level].target, "weights-o")
    return built.executable.mod.inspect_source("s"), built.scheduled.plan


def filters_problem(filter_shape: tuple[int, ...], images: int, groups: int = 1) -> Problem:
    """A weights gradient on images of 14 positions along each axis."""
    import tvmconvgrad as cg
    from tvmconvgrad.spec.reducing.merging import merged

    *taps, c_group, o = filter_shape
    space, ones, pads = (14,) * len(taps), (1,) * len(taps), tuple(tap // 2 for tap in taps)
    operator = cg.ConvolutionBackpropFilters(
        strides=ones, pads_begin=pads, pads_end=pads, dilations=ones, groups=groups, filter_shape=filter_shape
    )
    return merged(operator.problem((images, *space, c_group * groups), (images, *space, o), dtype="f32"))


@pytest.mark.parametrize("level", LEVELS)
def test_a_position_fetches_the_block_after_its_own_of_what_is_packed_before(level: str) -> None:
    from tvmconvgrad import schedules

    found = schedules.schedule(filters_problem((1, 1024, 1536), 8), BY_NAME[level].target, "weights-o")
    assert found.plan["packs"][0] == "before" and found.plan["prefetch"] == 0
    fetches = [each.value for each in nodes(found.module, tirx.Evaluate) if each.value.op.name == "tirx.prefetch"]
    places = [load.indices for each in fetches for load in nodes(each, TensorLoad) if load.source.name == "x_padded"]
    updates = [each for each in nodes(found.module, SBlockRealize) if each.block.name_hint.endswith("_update")]
    bound = dict(zip((each.var for each in updates[0].block.iter_vars), updates[0].iter_values))
    (read,) = [load.indices for load in nodes(updates[0].block, TensorLoad) if load.source.name == "x_padded"]
    assert places
    assert at_begin(replaced(read[2], bound)) == 0
    assert all(at_begin(place[2]) == 1 for place in places)


def at_begin(place: Expr) -> int:
    """An index in the first step of all loops."""
    zeros = {var: tirx.const(0, "int64") for var in nodes(place, tirx.Var)}
    return int(Analyzer().simplify(replaced(place, zeros)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("o_group", [16, 256])
def test_sums_of_groups_fetch_what_is_packed_next_into_l2(level: str, o_group: int) -> None:
    code, plan = filters(level, (3, 3, 16, 32 * o_group), 2, groups=32)
    assert plan["prefetch"] == 0 and operands(code, "prefetcht1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("c", "o"), [(96, 576), (576, 96), (64, 384), (960, 160), (24, 144)])
def test_a_product_that_fetches_what_it_reads_in_place_spills_no_sum(level: str, c: int, o: int) -> None:
    code, _ = filters(level, (1, c, o), 112)
    products = [loop for loop in simple_loops(code) if count(loop, r"vfmadd\d+ps")]
    assert products and not any(map(saves, products))


@pytest.mark.parametrize("level", LEVELS)
def test_a_depthwise_tile_fetches_the_lines_that_it_writes(level: str) -> None:
    code, plan, (row, _) = compiled(level, "depthwise data", "data-groups")
    bases: dict[str, list[int]] = {}
    for at, base in prefetched(code):
        bases.setdefault(base, []).append(at)
    assert [row * position for position in range(plan["tile"]["positions"])] in bases.values()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("channels", "far"), [(2048, True), (1024, False)])
def test_a_tile_fetches_its_part_of_a_filter_beyond_the_cache(level: str, channels: int, far: bool) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.spec.reducing.merging import merged

    operator = cg.ConvolutionBackpropFilters(
        strides=(2,), pads_begin=(0,), pads_end=(0,), dilations=(1,), filter_shape=(1, 1024, channels)
    )
    problem = merged(operator.problem((1, 15, 1024), (1, 8, channels), dtype="f32"))
    built = llvm.build(problem, BY_NAME[level].target, "weights-o")
    tile, bases = built.scheduled.plan["tile"], dict[str, list[int]]()
    for at, base in prefetched(built.executable.mod.inspect_source("s")):
        bases.setdefault(base, []).append(at)
    row = list(range(0, 4 * tile["o"], 4 * BY_NAME[level].lanes))  # a vector each; the rows lie apart
    assert (row in [sorted(at - min(found) for at in found) for found in bases.values()]) == far


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "rule", "decisions"),
    [
        # packed by work items, with too few FMAs for prefetches beside them; with its padding left out it is not packed
        ("depthwise data", "data-channels", {"leaves_out_by_position": 0}),
        ("depthwise filters", "weights-o", {}),
    ],
)
def test_where_the_plan_fetches_nothing(level: str, name: str, rule: str, decisions: dict[str, int]) -> None:
    code, plan, _ = compiled(level, name, rule, **decisions)
    assert plan["packs"] in ("work_item", ("work_item", "work_item"))
    assert prefetched(code) == []


@pytest.mark.parametrize("level", LEVELS)
def test_lines_that_are_loaded_in_parts_are_fetched_once(level: str) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.spec.reducing.merging import merged

    operator = cg.ConvolutionBackpropData(strides=(1,), pads_begin=(0,), pads_end=(0,), dilations=(1,), groups=32)
    problem = merged(operator.problem((1, 40, 32 * 4), (1, 4, 32 * 4), dtype="f32"))
    built = llvm.build(problem, BY_NAME[level].target, "data-groups")
    bases: dict[str, list[int]] = {}
    for at, base in prefetched(built.executable.mod.inspect_source("s")):
        bases.setdefault(base, []).append(at)
    assert bases
    for found in bases.values():
        assert len(found) == len({(at - min(found)) // 64 for at in found})


def depthwise(operator: str, size: int, stride: int, rank: int = 2) -> Problem:
    """A depthwise gradient in NCX, with 3 taps along each axis."""
    conv = Convolution(
        2, 64, 64, 64, (size,) * rank, (-(-size // stride),) * rank, (3,) * rank, (stride,) * rank, *[(1,) * rank] * 3
    )
    return reduced(Case(operator, conv, "NCX", "OIX").call.problem())


def fetched_rows(problem: Problem) -> dict[str, tuple[int, set[int]]]:
    """By sum, the first row that a tile of it writes, and the rows that it prefetches."""
    from tvmconvgrad import schedules

    found = schedules.schedule(problem, BY_NAME["x86-64-v4"].target, "data-positions", {"non_temporal": 0})
    rows = {}
    for tile in nodes(found.module, tirx.SeqStmt):
        blocks = nodes(tile.seq[-1], SBlockRealize)
        if len(blocks) == 1 and blocks[0].block.name_hint.startswith("result"):
            fetches = [each.value for each in tile.seq if isinstance(each, tirx.Evaluate)]
            loads = [load for each in fetches for load in nodes(each, TensorLoad) if load.source.name == "out"]
            (store,) = nodes(blocks[0].block, tirx.BufferStore)
            bound = dict(zip((each.var for each in blocks[0].block.iter_vars), blocks[0].iter_values))
            written = at_begin(replaced(store.indices[-2], bound))
            rows[blocks[0].block.name_hint] = written, {at_begin(load.indices[-2]) for load in loads}
    return rows


@pytest.mark.parametrize("size", [14, 28, 32, 64])
def test_the_first_phase_of_a_row_fetches_later_rows_of_its_own(size: int) -> None:
    found = fetched_rows(depthwise("ConvolutionBackpropData", size, 2))
    assert [name for name, (_, rows) in found.items() if rows] == ["result_0", "result_2"]
    assert {written % 2 for written, rows in found.values() if rows} == {0, 1}
    assert all(row > written and (row - written) % 2 == 0 for written, rows in found.values() for row in rows)


@pytest.mark.parametrize("operator", ["ConvTransposeBackpropData", "ConvolutionBackpropData"])
def test_a_row_without_phases_is_fetched_before_it_is_written(operator: str) -> None:
    ((written, rows),) = fetched_rows(depthwise(operator, 28, 1)).values()
    assert rows and min(rows) - written == 784 // 28


def test_the_only_row_is_not_fetched() -> None:
    assert all(not rows for _, rows in fetched_rows(depthwise("ConvolutionBackpropData", 200, 2, rank=1)).values())
