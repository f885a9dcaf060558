"""Products by warpgroups, which sm_90a has for 16 bits: on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schedules.cuda.test_gemm import LONG, WIDE
from tests.support.cases.by_rule import cases
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering, in_turn
from tests.support.gpu.cases import SM_90, SM_90A, check, loop_of, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad import schedules
from tvmconvgrad.compiler.cuda import compiler, toolkit
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.tiles import WARPGROUP_TILES, GemmTile

pytestmark = needs_emulator
TYPES = ("f16", "bf16")
SQUARE = WARPGROUP_TILES.index(GemmTile(128, 128, (2, 1)))


def of_both_types() -> list[Case]:
    """The rules' cases, each in the type of its turn: both appear with all operators."""
    return [case.with_dtype(TYPES[i // len(OPERATORS) % 2]) for i, case in enumerate(cases())]


@pytest.mark.parametrize("case", covering(of_both_types()))
def test_results_are_exact(emulator: Emulator, case: Case) -> None:
    if not takes("gemm", case, SM_90A):
        pytest.skip("the sum is no matrix product")
    check(emulator, case, "gemm", target=SM_90A)


@pytest.mark.parametrize(("operator", "tile"), in_turn(8, (0, 1, 3), range(len(WARPGROUP_TILES)), second=4))
def test_each_tile(emulator: Emulator, operator: int, tile: int) -> None:
    """With lines of each length and in both directions, and each number of stages."""
    turn = operator + tile
    case = Case(OPERATORS[operator], WIDE, "NXC", ("XIO", "OIX")[turn % 2], TYPES[turn % 2])
    given = {"tile": tile, "block_k": (64, 32)[turn // 2 % 2]}
    stages = program_of(case, "gemm", given, SM_90A)[0].candidates["stages"]
    check(emulator, case, "gemm", {**given, "stages": stages[tile % len(stages)]}, SM_90A)


@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_split_sums(emulator: Emulator, operator: str) -> None:
    case = Case(operator, LONG if operator.endswith("Filters") else WIDE, "NXC", "OIX", "bf16")
    split_k = max(program_of(case, "gemm", target=SM_90A)[0].candidates["split_k"])
    assert split_k > 1
    check(emulator, case, "gemm", {"split_k": split_k}, SM_90A)


@pytest.mark.parametrize("case", covering(random_cases(seed=23, count=30), quick=0))
def test_random_attributes(emulator: Emulator, case: Case) -> None:
    if not takes("gemm", case, SM_90A):
        pytest.skip("the sum is no matrix product")
    check(emulator, case.with_dtype(TYPES[case.convolution.c % 2]), "gemm", target=SM_90A)


@pytest.mark.parametrize(
    ("dtype", "target", "multiplies"),
    [
        ("f16", "cuda -arch=sm_90a", True),
        ("bf16", "cuda -arch=sm_90a", True),
        ("f32", "cuda -arch=sm_90a", False),
        ("f32", "cuda -arch=sm_90a -fpmath_mode=tf32", False),
        ("f16", "cuda -arch=sm_90", False),
        ("f16", "cuda -arch=sm_100a", False),
    ],
)
def test_they_multiply_16_bits_and_on_sm_90a_alone(dtype: str, target: str, multiplies: bool) -> None:
    _, program = program_of(Case(OPERATORS[0], WIDE, dtype=dtype), "gemm", target=parse_target(target))
    assert ("wgmma" in program.source) is multiplies


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_loop_is_one_piece_of_code(operator: str) -> None:
    """Copies and their addresses are left to the warps while tensor cores multiply, without branches."""
    given = {"tile": SQUARE, "copies": Copies.PAST_L1}
    body = loop_of(program_of(Case(operator, WIDE, dtype="f16"), "gemm", given, SM_90A)[1])
    order = ["__syncthreads", "multiply_shared", "commit_products", "tvmconvgrad_copy", "wait_products_1"]
    places = [body.index(each) for each in order]
    assert places == sorted(places)
    assert "if (" not in body


def test_they_are_expected_to_be_faster() -> None:
    problem = Case(OPERATORS[0], LONG, dtype="f16").call.problem()

    def cost(target: Target) -> float:
        found = schedules.rules(target)[0].cost(problem)
        assert found is not None
        return found

    assert cost(SM_90A) < cost(SM_90)


@pytest.mark.skipif(toolkit.find_nvcc() is None, reason="needs nvcc")
def test_a_wait_for_each_product_is_seen() -> None:
    """What test_builds.py demands of kernels can fail: here sums are read while products go on."""
    case = Case(OPERATORS[0], WIDE, dtype="f16")
    _, program = program_of(case, "gemm", {"tile": SQUARE}, SM_90A)
    faulty = replace(program, source=program.source.replace("  tvmconvgrad_wait_products_0();", ""))
    for each, serialized in ((program, False), (faulty, True)):
        _, facts = compiler.compile_program(each, SM_90A)
        assert [usage["serialized"] for usage in facts["usage"].values()] == [serialized]
