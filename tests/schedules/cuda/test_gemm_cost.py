"""What the model of the machine says of matrix products: as was measured on an H100, it is about what is under way."""

from __future__ import annotations

from math import prod

import pytest
import tvm

from tests.support.case import OPERATORS, Case
from tests.support.convolution import Convolution
from tests.support.gpu_cases import SM_90A
from tvmconvgrad.schedules.cuda.copies import Copies
from tvmconvgrad.schedules.cuda.gemm_cost import Cost
from tvmconvgrad.schedules.cuda.gemm_plan import Planner
from tvmconvgrad.schedules.cuda.gemm_tiles import FMA_TILES, GROUP_TILES, Tile
from tvmconvgrad.schedules.cuda.machine import Machine
from tvmconvgrad.schedules.decisions import Decisions

MACHINE = Machine.of(tvm.target.Target(SM_90A.to_dict()))
POINTWISE = Convolution(64, 1, 512, 1024, (14, 14), (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def planner(operator: int, dtype: str = "f16", layer: Convolution = POINTWISE) -> Planner:
    return Planner(MACHINE, Case(OPERATORS[operator], layer, dtype=dtype).call.problem())


def cost_of(operator: int, tile: Tile, dtype: str = "f16", copies: Copies = Copies.PAST_L1) -> Cost:
    return planner(operator, dtype).cost(tile, copies)


def test_a_block_waits_for_memory_where_few_stages_are_under_way() -> None:
    cost = cost_of(0, Tile(128, 128, (2, 1)), copies=Copies.BOXES)
    times = [cost.microseconds(4, 1, stages) for stages in (2, 3, 4, 7)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


def test_two_blocks_on_an_sm_hide_each_others_ends() -> None:
    layer = Convolution(64, 1, 64, 256, (56, 56), (56, 56), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    found = planner(1, layer=layer)
    alone, beside = (found.cost(Tile(*tile), Copies.BOXES) for tile in ((128, 256, (2, 1)), (64, 128, (1, 1))))
    assert (alone.together(3), beside.together(2) > 2) == (1, True)
    assert beside.microseconds(1, 1, 2) < alone.microseconds(1, 1, 3)


def test_large_clusters_find_fewer_sms() -> None:
    assert [MACHINE.processors_of(cluster) for cluster in (1, 2, 4, 8)] == [132, 132, 121, 110]
    cost = cost_of(0, Tile(128, 256, (2, 1)))
    assert cost.tiles == 16
    assert cost.microseconds(8, 8, 4) > 1.5 * cost.microseconds(8, 1, 4)  # 128 blocks: two turns of 110, and one


def test_warps_that_quarters_of_an_sm_do_not_share_evenly() -> None:
    units, tile = planner(1, "f32").units, Tile(64, 64, (8, 8))
    assert tile in FMA_TILES
    assert [units.even(tile, blocks) for blocks in (2, 3, 4)] == [1.0, 0.75, 1.0]


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("operator", [0, 1, 3])
def test_the_plan_is_the_best_choice_and_each_draw_the_best_of_those_left(operator: int, dtype: str) -> None:
    found = planner(operator, dtype)
    best = found.least_cost()
    assert best is not None

    def cost(given: dict[str, int]) -> float:
        plan = found.plan(Decisions(given))
        return found.cost(plan.tile, plan.copies, plan.depth).microseconds(plan.splits, plan.joined, plan.stages)

    assert cost({}) == pytest.approx(best)
    decisions = Decisions()
    found.plan(decisions)
    for name, options in decisions.candidates.items():
        if name != "depth":  # the usual one is taken
            assert all(cost({name: option}) >= best * 0.999 for option in options), name


def test_tiles_take_whole_pairs_of_blocks() -> None:
    layer = Convolution(3, 1, 192, 192, (9, 9), (9, 9), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    tile = Tile(64, 64, (1, 1))
    assert tile in GROUP_TILES
    counts = [
        planner(0, layer=layer).cost(tile, way).tiles for way in (Copies.BOXES, Copies.B_FOR_TWO, Copies.A_FOR_TWO)
    ]
    assert counts == [prod((3, 3)), prod((4, 3)), prod((3, 4))]
