"""AMX's instructions: which targets have them, for which sums, and that a block's sums stay in tile registers."""

from __future__ import annotations

import pytest

from tests.support.cases.case import OPERATORS, ROLES, Case
from tests.support.cases.convolution import Convolution
from tests.support.cpu.amx import AMX
from tests.support.cpu.assembly import count
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines import tile_permission
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec import Problem
from tvmconvgrad.tir.passes.tiles import REGISTERS, TileBlock

ONE = (1, 1)
NAMES = ("tilezero", "tileloadd", "tdpbf16ps", "tilestored")
RULES = {"w": "weights-tiles", "x": "data-tiles", "y": "data-tiles"}


def problem_of(operator: str, channels: int = 64, columns: int = 28, dtype: str = "bf16") -> Problem:
    conv = Convolution(2, 1, channels, channels, (28, columns), (28, columns), (3, 3), ONE, ONE, ONE, ONE)
    return Case(operator, conv, dtype=dtype).call.problem()


def rules(problem: Problem, target: str) -> list[str]:
    """The rules that take a problem, the cheapest first."""
    return schedules.applicable(problem, parse_target(f"llvm -mcpu={target} -mtriple=x86_64-linux-gnu"))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", ["sapphirerapids -mattr=+amx-bf16", "x86-64-v4 -mattr=+avx512bf16,+amx-bf16"])
def test_cpus_that_have_them(target: str, operator: str) -> None:
    problem, rule = problem_of(operator), RULES[ROLES[operator][1]]
    assert rules(problem, target)[0] == rule
    lines = llvm.build(problem, parse_target(f"llvm -mcpu={target} -mtriple=x86_64-linux-gnu")).assembly().splitlines()
    zeros, loads, products, stores = (count(lines, rf"\s{name}\s") for name in NAMES)
    assert products >= 4 and products % 4 == 0  # four sums in turn
    assert loads in (products, products // 4 * 5)  # of 2 x 2 tiles, or of 1 x 4
    assert zeros == stores and zeros % 4 == 0  # nothing goes to memory between products
    assert count(lines, r"\sldtilecfg\s") == count(lines, r"\stilerelease") >= 1


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("target", ["sapphirerapids", "graniterapids", "sapphirerapids -mattr=+amx-bf16,-avx512bf16"])
def test_cpus_that_have_not(target: str, operator: str) -> None:
    assert not set(RULES.values()) & set(rules(problem_of(operator), target))


@pytest.mark.parametrize("operator", OPERATORS)
def test_sums_that_would_not_fill_them(operator: str) -> None:
    filters = ROLES[operator][1] == "w"
    target, tiles = "sapphirerapids -mattr=+amx-bf16", set(RULES.values())
    assert bool(tiles & set(rules(problem_of(operator, channels=8), target))) == (not filters)
    assert bool(tiles & set(rules(problem_of(operator, columns=3), target))) == (not filters)
    assert tiles & set(rules(problem_of(operator, columns=29), target))
    for dtype in ("f32", "f16"):
        assert not tiles & set(rules(problem_of(operator, dtype=dtype), target))


def test_features_are_required_of_the_cpu() -> None:
    assert {"amx_tile", "amx_bf16"} <= llvm.required_features(parse_target(AMX))
    assert not tile_permission.FEATURES & llvm.required_features(parse_target("llvm -mcpu=sapphirerapids"))


@pytest.mark.parametrize(("m", "n", "fits"), [(2, 2, True), (1, 4, True), (3, 1, True), (2, 3, False), (4, 1, False)])
def test_blocks_have_registers_for_operands(m: int, n: int, fits: bool) -> None:
    assert TileBlock(16, m, n, 16).fits == fits
    assert not fits or m * n + m + 1 <= REGISTERS
