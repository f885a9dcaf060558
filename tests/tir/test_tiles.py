"""AMX's instructions: which targets have them, for which sums, and that a block's sums stay in tile registers."""

from __future__ import annotations

import pytest
from tvm.tirx import For

from tests.support.cases.case import OPERATORS, ROLES, Case
from tests.support.cases.convolution import Convolution
from tests.support.cpu.amx import AMX
from tests.support.cpu.assembly import count
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines import tile_permission
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec import Problem
from tvmconvgrad.tir.annotations import TILES
from tvmconvgrad.tir.passes.tiles import REGISTERS, TileBlock
from tvmconvgrad.tir.rewriting import nodes

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


def block_of(operator: str, conv: Convolution, rule: str, data_format: str = "NXC") -> list[int]:
    """The extents of the loops that a block of tile registers stands for: M, N, pairs of products, and a pair."""
    case = Case(operator, conv, data_format, "XIO", "bf16")
    module = schedules.schedule(case.call.problem(), parse_target(AMX), rule).module
    (marked,) = [loop for loop in nodes(module, For) if TILES in loop.annotations and len(nodes(loop, For)) == 4]
    return [int(loop.extent) for loop in nodes(marked, For)][::-1]


@pytest.mark.parametrize(
    ("channels", "taps", "dilation", "pairs"),
    [(3, 7, 1, 14), (4, 3, 1, 6), (1, 5, 1, 5), (3, 11, 1, 11), (20, 3, 1, 15), (24, 3, 1, 12), (3, 7, 2, 2)],
)
@pytest.mark.parametrize("operator", ["ConvTransposeBackpropData", "ConvolutionBackpropData"])
def test_an_instruction_adds_up_several_taps_of_few_channels(
    operator: str, channels: int, taps: int, dilation: int, pairs: int
) -> None:
    span = dilation * (taps - 1)
    sizes = (8, 28 + span - 2), (8, 28)  # with padding, so that data is packed
    c, o = (channels, 32) if operator == "ConvTransposeBackpropData" else (32, channels)
    conv = Convolution(2, 1, c, o, *sizes, (1, taps), ONE, (1, dilation), (0, 1), (0, 1))
    *_, found, pair = block_of(operator, conv, "data-tiles")
    assert (found, pair) == (pairs, 2)


@pytest.mark.parametrize(("channels", "rows"), [(3, 5), (15, 5), (16, 16), (40, 14)])
def test_rows_are_taps_of_few_channels_in_weights_gradients(channels: int, rows: int) -> None:
    conv = Convolution(2, 1, channels, 32, (12, 28), (8, 28), (5, 3), ONE, ONE, (0, 1), (0, 1))
    m, *_ = block_of("ConvolutionBackpropFilters", conv, "weights-tiles")
    assert m % rows == 0 and m // rows in range(1, 5)


@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if ROLES[operator][1] != "w"])
def test_layers_with_one_tap_are_not_transposed_in_ncx(operator: str) -> None:
    ones = Convolution(2, 1, 64, 64, (28, 28), (28, 28), ONE, ONE, ONE, (0, 0), (0, 0))
    threes = Convolution(2, 1, 64, 64, (28, 28), (28, 28), (3, 3), ONE, ONE, ONE, ONE)
    for conv, cheapest in ((ones, "data-tiles-positions"), (threes, "data-tiles")):
        problem = Case(operator, conv, "NCX", "OIX", "bf16").call.problem()
        assert schedules.applicable(problem, parse_target(AMX))[0] == cheapest


@pytest.mark.parametrize(("m", "n", "fits"), [(2, 2, True), (1, 4, True), (3, 1, True), (2, 3, False), (4, 1, False)])
def test_blocks_have_registers_for_operands(m: int, n: int, fits: bool) -> None:
    assert TileBlock(16, m, n, 16).fits == fits
    assert not fits or m * n + m + 1 <= REGISTERS
