"""Tiles of few columns, whose A goes to registers past shared memory: on an emulated GPU."""

from __future__ import annotations

import itertools

import pytest
import tvm

from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import in_turn
from tests.support.gpu.cases import SM_90, SM_90A, check, loop_of, problem_of, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.schedules.cuda.gemm.plan import GemmPlanner
from tvmconvgrad.schedules.cuda.gemm.tiles import TENSOR_TILES, TILES_FROM_REGISTERS, WARPGROUP_TILES

pytestmark = needs_emulator
MACHINE = GpuMachine.of(tvm.target.Target(SM_90.to_dict()))
TARGETS = {SM_90: len(TENSOR_TILES), SM_90A: len(WARPGROUP_TILES)}
"""With the number of the first tile whose A comes from registers."""
STEM = Convolution(2, 1, 3, 40, (19, 20), (10, 10), (7, 7), (2, 2), (1, 1), (3, 3), (3, 2))
GROUPS = Convolution(2, 3, 15, 72, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
CUBE = Convolution(2, 1, 3, 24, (6, 7, 5), (6, 7, 5), (3, 2, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 0, 1))
LINE = Convolution(3, 1, 4, 16, (40,), (40,), (9,), (1,), (2,), (8,), (8,))
LAYERS = {"stem": STEM, "groups": GROUPS, "cube": CUBE, "line": LINE}


@pytest.mark.parametrize(
    ("layer", "tile"), in_turn(len(LAYERS), list(LAYERS), range(len(TILES_FROM_REGISTERS)), second=2)
)
def test_each_tile(emulator: Emulator, layer: str, tile: int) -> None:
    """In each type and layout, for both targets, of every BLOCK_K and number of stages, in turn."""
    turn = list(LAYERS).index(layer) + tile
    target = list(TARGETS)[(turn + tile) % 2]
    case = Case(
        OPERATORS[1], LAYERS[layer], ("NXC", "NCX")[turn // 2 % 2], ("XIO", "OIX")[turn % 2], ("f16", "bf16")[turn % 2]
    )
    given = {"tile": TARGETS[target] + tile, "block_k": (32, 64)[turn % 2]}
    stages = program_of(case, "gemm", given, target)[0].candidates["stages"]
    check(emulator, case, "gemm", {**given, "stages": stages[turn % len(stages)]}, target)


def test_split_sums(emulator: Emulator) -> None:
    case = Case(OPERATORS[1], LAYERS["stem"], "NXC", "XIO", "bf16")
    given = {"tile": TARGETS[SM_90]}
    for split_k in program_of(case, "gemm", given)[0].candidates["split_k"][1:]:
        check(emulator, case, "gemm", {**given, "split_k": split_k})


def few_columns() -> list[Case]:
    """Random data gradients that have such tiles."""
    cases = (case.with_dtype("f16") for case in random_cases(seed=31, count=120) if case.operator == OPERATORS[1])
    return [case for case in cases if takes("gemm", case) and _tiles(case)]


def _tiles(case: Case) -> list[int]:
    return [tile for tile in GemmPlanner(MACHINE, problem_of(case)).tile_candidates() if tile >= TARGETS[SM_90]]


@pytest.mark.slow
@pytest.mark.parametrize("case", few_columns(), ids=str)
def test_random_attributes(emulator: Emulator, case: Case) -> None:
    tiles = _tiles(case)
    check(emulator, case, "gemm", {"tile": tiles[case.convolution.o % len(tiles)]})


@pytest.mark.parametrize(("operator", "target"), list(itertools.product(OPERATORS, TARGETS)), ids=str)
def test_data_gradients_of_a_stem_take_one(operator: str, target: Target) -> None:
    layer = Convolution(64, 1, 3, 64, (224, 224), (112, 112), (7, 7), (2, 2), (1, 1), (3, 3), (2, 2))
    scheduled, program = program_of(Case(operator, layer, dtype="f16"), "gemm", target=target)
    expected = operator == "ConvolutionBackpropData"
    assert ("tvmconvgrad_load_vector" in program.source) is expected
    assert any(tile >= TARGETS[target] for tile in scheduled.candidates["tile"]) is expected


def test_the_loop_is_one_piece_of_code() -> None:
    body = loop_of(program_of(Case(OPERATORS[1], LINE, dtype="f16"), "gemm", {"tile": TARGETS[SM_90]})[1])
    assert body.count("tvmconvgrad_wait") == 2  # two steps
    assert "tvmconvgrad_load_vector" in body
    assert "if (" not in body
