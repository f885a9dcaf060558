"""What the model of the machine says of matrix products: as was measured on an H100, it is about what is under way."""

from __future__ import annotations

from math import prod

import pytest
import tvm

from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.gpu.cases import SM_90A
from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.cost import Cost
from tvmconvgrad.schedules.cuda.gemm.plan import GemmPlanner
from tvmconvgrad.schedules.cuda.gemm.tiles import FMA_TILES, WARPGROUP_TILES, GemmTile
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec.reducing.merging import merged

MACHINE = GpuMachine.of(tvm.target.Target(SM_90A.to_dict()))
POINTWISE = Convolution(64, 1, 512, 1024, (14, 14), (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def planner(operator: int, dtype: str = "f16", layer: Convolution = POINTWISE) -> GemmPlanner:
    return GemmPlanner(MACHINE, Case(OPERATORS[operator], layer, dtype=dtype).call.problem())


def cost_of(operator: int, tile: GemmTile, dtype: str = "f16", copies: Copies = Copies.PAST_L1) -> Cost:
    return planner(operator, dtype).cost(tile, copies)


def test_a_block_waits_for_memory_where_few_stages_are_under_way() -> None:
    cost = cost_of(0, GemmTile(128, 128, (2, 1)), copies=Copies.TMA)
    times = [cost.microseconds(4, 1, stages) for stages in (2, 3, 4, 7)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


def test_two_blocks_on_an_sm_hide_each_others_ends() -> None:
    layer = Convolution(64, 1, 64, 256, (56, 56), (56, 56), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    found = planner(1, layer=layer)
    alone, beside = (found.cost(GemmTile(*tile), Copies.TMA) for tile in ((128, 256, (2, 1)), (64, 128, (1, 1))))
    assert (alone.occupancy(3), beside.occupancy(2) > 2) == (1, True)
    assert beside.microseconds(1, 1, 2) < alone.microseconds(1, 1, 3)


def test_large_clusters_find_fewer_sms() -> None:
    assert [MACHINE.sms_of(cluster) for cluster in (1, 2, 4, 8)] == [132, 132, 121, 110]
    cost = cost_of(0, GemmTile(128, 256, (2, 1)))
    assert cost.tiles == 16
    assert cost.microseconds(8, 8, 4) > 1.5 * cost.microseconds(8, 1, 4)  # 128 blocks: two turns of 110, and one


def test_warps_that_quarters_of_an_sm_do_not_share_evenly() -> None:
    units, tile = planner(1, "f32").units, GemmTile(64, 64, (8, 8))
    assert tile in FMA_TILES
    assert [units.warp_balance(tile, blocks) for blocks in (2, 3, 4)] == [1.0, 0.75, 1.0]


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("operator", [0, 1, 3])
def test_the_plan_is_the_best_choice_and_each_draw_the_best_of_those_left(operator: int, dtype: str) -> None:
    found = planner(operator, dtype)
    best = found.least_cost()
    assert best is not None

    def cost(given: dict[str, int]) -> float:
        plan = found.plan(Decisions(given))
        return found.cost(plan.tile, plan.copies, plan.block_k).microseconds(plan.split_k, plan.in_cluster, plan.stages)

    assert cost({}) == pytest.approx(best)
    decisions = Decisions()
    found.plan(decisions)
    for name, options in decisions.candidates.items():
        if name != "block_k":  # the usual one is taken
            assert all(cost({name: option}) >= best * 0.999 for option in options), name


def test_tiles_take_whole_pairs_of_blocks() -> None:
    layer = Convolution(3, 1, 192, 192, (9, 9), (9, 9), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    tile = GemmTile(64, 64, (1, 1))
    assert tile in WARPGROUP_TILES
    counts = [
        planner(0, layer=layer).cost(tile, way).tiles
        for way in (Copies.TMA, Copies.TMA_MULTICAST_B, Copies.TMA_MULTICAST_A)
    ]
    assert counts == [prod((3, 3)), prod((4, 3)), prod((3, 4))]


def one_by_one(channels: int, filters: int, size: int, stride: int = 1) -> Convolution:
    """A 1x1 layer with 64 images of so many positions along each axis."""
    x, y = (size, size), (size // stride, size // stride)
    return Convolution(64, 1, channels, filters, x, y, (1, 1), (stride, stride), (1, 1), (0, 0), (0, 0))


SQUARE = Convolution(64, 1, 256, 256, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
# operator, layer, and what an H100 took from a cold L2 cache: BLOCK_M, BLOCK_N, warpgroups, stages, split_k,
# in_cluster, copies; microseconds
MEASURED: dict[str, tuple[int, Convolution, list[tuple[int, int, int, int, int, int, int, float]]]] = {
    "long sums that wait for memory": (0, one_by_one(256, 512, 56, 2), [
        (128, 128, 2, 6, 16, 1, 0, 45.4), (128, 128, 2, 3, 24, 1, 2, 48.2), (128, 128, 2, 3, 16, 1, 3, 54.4),
        (128, 128, 2, 3, 12, 1, 2, 57.6), (128, 128, 2, 3, 8, 1, 2, 70.9), (128, 128, 2, 3, 6, 1, 2, 86.8),
    ]),
    "large results of short sums": (1, one_by_one(256, 64, 56), [
        (128, 128, 2, 3, 1, 1, 0, 57.4), (128, 128, 2, 2, 1, 1, 2, 60.2), (256, 64, 2, 2, 1, 1, 2, 64.8),
        (128, 256, 2, 4, 1, 1, 2, 73.0), (128, 128, 2, 3, 1, 1, 3, 76.0), (128, 128, 2, 6, 1, 1, 2, 88.3),
    ]),
    "many products": (0, SQUARE, [
        (128, 256, 2, 4, 6, 2, 2, 34.3), (128, 256, 2, 4, 6, 1, 3, 36.3), (128, 256, 2, 4, 5, 1, 2, 38.2),
        (64, 128, 1, 3, 5, 1, 3, 45.4), (256, 64, 2, 2, 6, 1, 4, 53.3), (64, 32, 1, 4, 3, 1, 4, 90.2),
    ]),
    "few positions": (1, one_by_one(512, 2048, 7), [
        (128, 128, 2, 6, 1, 1, 2, 18.1), (128, 128, 2, 7, 1, 1, 2, 18.7), (256, 128, 2, 4, 2, 2, 2, 23.6),
        (128, 128, 2, 3, 1, 1, 3, 28.3), (128, 32, 2, 2, 1, 1, 4, 35.6), (128, 128, 2, 3, 5, 1, 2, 41.0),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_the_choice_among_what_was_measured_is_one_of_the_fastest(name: str) -> None:
    operator, layer, measured = MEASURED[name]
    found = GemmPlanner(MACHINE, merged(Case(OPERATORS[operator], layer, dtype="f16").call.problem()))

    def expected(row: tuple[int, int, int, int, int, int, int, float]) -> float:
        block_m, block_n, warpgroups, stages, split_k, in_cluster, copies, _ = row
        return found.cost(GemmTile(block_m, block_n, (warpgroups, 1)), Copies(copies)).microseconds(
            split_k, in_cluster, stages
        )

    fastest = min(row[-1] for row in measured)
    assert min(measured, key=expected)[-1] <= 1.1 * fastest
    assert max(measured, key=expected)[-1] >= 1.3 * fastest
