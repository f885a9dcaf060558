"""What tiles of A find in the L1 cache: by a cache that is played through, and what is copied by way of it."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.schedules.cuda.test_gemm import WIDE
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import in_turn
from tests.support.gpu.cases import SM_80, SM_90, SM_90A, TF32, check, loop_of, program_of
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.schedules.cuda.expression_stages import expression_stages
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.plan import GemmPlanner
from tvmconvgrad.schedules.cuda.gemm.shapes import GemmShape, gemm_shapes
from tvmconvgrad.schedules.cuda.gemm.tiles import FMA_TILES, TENSOR_TILES, WARPGROUP_TILES, GemmTile
from tvmconvgrad.schedules.cuda.hardware import LINE_BYTES
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions import Blocking, express
from tvmconvgrad.spec.reducing.merging import merged

pytestmark = needs_emulator
BLOCK_K = 64
SQUARE = Convolution(8, 1, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
DILATED = Convolution(4, 1, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), (2, 2), (2, 2), (2, 2))
STRIDED = Convolution(4, 1, 64, 64, (28, 28), (14, 14), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0))
MANY = Convolution(8, 1, 256, 64, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
LINE = Convolution(8, 1, 64, 64, (400,), (400,), (9,), (1,), (1,), (4,), (4,))
CUBE = Convolution(2, 1, 64, 64, (12, 12, 12), (12, 12, 12), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1))
SINGLE = Convolution(8, 1, 64, 64, (27, 28), (27, 28), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def met(shape: GemmShape, rows: int) -> Iterator[tuple[int, ...]]:
    """The elements (vectors of all channels of a block) that a tile in the middle meets, in order: pads, too."""
    taps = list(itertools.product(*(range(axis.taps) for axis in shape.axes)))
    space = [axis.size for axis in shape.axes]
    count = int(np.prod(space))
    images = (shape.k if shape.by_taps else shape.m) // count
    positions = list(itertools.product(range(images), *map(range, space)))

    def element(position: tuple[int, ...], tap: tuple[int, ...]) -> tuple[int, ...]:
        image, *at = position
        return image, *(i * axis.stride + j * axis.step for i, j, axis in zip(at, tap, shape.axes))

    if shape.by_taps:
        some = taps[: rows // min(shape.channels, shape.channel_block(BLOCK_K))]
        for first in range(0, len(positions), BLOCK_K):
            yield from (element(each, tap) for tap in some for each in positions[first : first + BLOCK_K])
    else:
        first = len(positions) // 2 // rows * rows
        for _ in range(2):  # blocks of channels: other elements, which take the place of the first ones
            yield from (element(each, tap) for tap in taps for each in positions[first : first + rows])


def missed(elements: Iterable[tuple[int, ...]], places: int) -> float:
    """The part that a cache of so many places does not have, when the one that was not used for longest goes."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    misses = count = 0
    for each in elements:
        count += 1
        if each not in cache:
            misses += 1
        cache[each] = None
        cache.move_to_end(each)
        if len(cache) > places:
            cache.popitem(last=False)
    return misses / count


@pytest.mark.parametrize("rows", [64, 128, 256])
@pytest.mark.parametrize("operator", [0, 1, 3])
@pytest.mark.parametrize(
    "layer",
    [SQUARE, DILATED, STRIDED, MANY, LINE, CUBE],
    ids=["square", "dilated", "strided", "many channels", "line", "cube"],
)
def test_what_is_new_in_a_cache_of_that_size(layer: Convolution, operator: int, rows: int) -> None:
    problem = merged(Case(OPERATORS[operator], layer, dtype="f16").call.problem())
    for shape in gemm_shapes(problem):
        reuse = shape.reuse(rows, BLOCK_K)
        assert 0 < reuse.new <= 1
        elements = list(met(shape, rows))
        found = missed(elements if shape.by_taps else elements[: len(elements) // 2], reuse.bytes // LINE_BYTES)
        assert found == pytest.approx(reuse.new, rel=0.3, abs=0.03)
        if reuse.new < 0.5:  # and a much smaller cache does not do
            assert missed(elements, reuse.bytes // LINE_BYTES // 8) > 1.5 * reuse.new


def test_nothing_is_met_twice_by_one_tap_or_one_tap_s_channels() -> None:
    for operator in (0, 1, 3):
        (shape,) = gemm_shapes(merged(Case(OPERATORS[operator], SINGLE, dtype="f16").call.problem()))
        assert shape.reuse(128, BLOCK_K).new == 1
    (shape,) = gemm_shapes(Case(OPERATORS[0], SQUARE, dtype="f16").call.problem())
    assert shape.reuse(64, BLOCK_K).new == 1


TARGETS = {"f16 sm_90a": SM_90A, "f16 sm_90": SM_90, "f32": SM_90, "tf32": TF32}
TILES = {"f16 sm_90a": WARPGROUP_TILES, "f16 sm_90": TENSOR_TILES, "f32": FMA_TILES, "tf32": TENSOR_TILES}


@pytest.mark.parametrize(("operator", "what"), in_turn(4, (0, 1, 3), list(TARGETS)))
def test_results_are_exact_in_both_ways(emulator: Emulator, operator: int, what: str) -> None:
    dtype = what.removeprefix("t")[:3]
    case = Case(OPERATORS[operator], WIDE, dtype=dtype)
    tile = TILES[what].index(next(each for each in TILES[what] if (each.block_m, each.block_n) == (128, 64)))
    for cached in (0, 1):
        check(emulator, case, "gemm", {"tile": tile, "copies": cached}, TARGETS[what])


@pytest.mark.parametrize("operator", OPERATORS)
def test_only_a_is_copied_by_way_of_the_cache(operator: str) -> None:
    tile = TENSOR_TILES.index(GemmTile(128, 64, (2, 2)))
    for cached in (0, 1):
        source = _source(operator, {"tile": tile, "copies": cached}, SM_90)
        assert ("cp.async.ca" in source) is bool(cached)
        assert "cp.async.cg" in source


@pytest.mark.parametrize("operator", [0, 1, 3])
@pytest.mark.parametrize("block_k", [64, 32, 0])
def test_a_block_of_channels_meets_all_taps_before_the_next_one_does(operator: int, block_k: int) -> None:
    few = Convolution(1, 1, 96, 96, (3, 3), (3, 3), (3, 2), (1, 1), (1, 1), (1, 1), (1, 0))
    problem = Case(OPERATORS[operator], few, dtype="f16").call.problem()
    expression = express(problem, Blocking(c=8, o=8))
    _, found = expression_stages(expression)
    product = Product.of(problem, found[expression.sums[0]], block_k)
    if product.is_filter:
        numbers = [tuple(int(i) for i in product.index(*map(number, (0, at, 0)))[1:-1]) for at in range(product.m)]
        extents = product.m_extents
    else:
        numbers = [tuple(int(i) for i in product.k_index(number(at))) for at in range(product.k)]
        extents = product.k_extents
    channel_block = 32 if block_k else extents[-1]  # of 96 channels, by 64 or 32
    assert numbers == sorted(itertools.product(*map(range, extents)), key=lambda at: (at[-1] // channel_block, at))


def _source(operator: str, given: dict[str, int], target: Target) -> str:
    return program_of(Case(operator, WIDE, dtype="f16"), "gemm", given, target)[1].source


@pytest.mark.parametrize("operator", [0, 1, 3])
def test_large_layers_of_many_taps_go_by_way_of_the_cache_where_l2_limits(operator: int) -> None:
    layer = Convolution(64, 1, 64, 64, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    machine = replace(GpuMachine.of(tvm.target.Target(SM_90A.to_dict())), l2_bytes_per_cycle=20)
    for each, worth in ((layer, True), (SINGLE, False)):
        planner = GemmPlanner(machine, merged(Case(OPERATORS[operator], each, dtype="f16").call.problem()))
        tiles = [planner.units.tiles[i] for i in planner.tile_candidates()]
        tiles = [tile for tile in tiles if Copies.CACHED in planner.copy_modes(tile) or not worth]
        past, by_l1 = (
            min(
                planner.cost(tile, way).microseconds(split_k, 1, 3)
                for tile in tiles
                for split_k in planner.split_k(tile)
            )
            for way in (Copies.PAST_L1, Copies.CACHED)
        )
        assert (by_l1 < past) is worth


@pytest.mark.parametrize("target", [SM_80, SM_90, SM_90A], ids=str)
@pytest.mark.parametrize("operator", [0, 1, 3])
def test_stages_and_what_has_to_stay_fit_into_one_memory(operator: int, target: Target) -> None:
    machine = GpuMachine.of(tvm.target.Target(target.to_dict()))
    found = 0
    for layer in (SQUARE, STRIDED, CUBE):
        problem = Case(OPERATORS[operator], layer, dtype="f16").call.problem()
        planner = GemmPlanner(machine, problem)
        for tile, cached in itertools.product(planner.tile_candidates(), (Copies.PAST_L1, Copies.CACHED)):
            if cached not in planner.copy_modes(planner.units.tiles[tile]):
                continue
            plan = planner.plan(Decisions({"tile": tile, "copies": cached}))
            found += cached is Copies.CACHED
            stages = planner.units.stage_bytes(plan.tile, plan.block_k, plan.stages)
            l1_bytes = (
                max(shape.reuse(plan.tile.block_m, plan.block_k).bytes for shape in planner.shapes()) if cached else 0
            )
            blocks = planner.cost(plan.tile, cached, plan.block_k).occupancy(plan.stages)
            assert blocks * stages <= machine.shared
            assert blocks * (stages + l1_bytes) <= machine.shared_and_l1
    assert found > 10


@pytest.mark.parametrize("what", ["f16 sm_90a", "f16 sm_90", "f32"])
def test_tiles_with_fewer_vectors_than_threads_have_no_branch(what: str) -> None:
    tile = next(i for i, each in enumerate(TILES[what]) if (each.block_m, each.block_n) == (128, 16))
    body = loop_of(program_of(Case(OPERATORS[1], WIDE, dtype=what[:3]), "gemm", {"tile": tile}, TARGETS[what])[1])
    assert "tvmconvgrad_copy" in body
    assert "if (" not in body
