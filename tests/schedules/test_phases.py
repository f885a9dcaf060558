"""Strided data gradients of odd sizes: their phases differ by one position, and are made alike where that is cheap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.building.scheduled import run
from tests.support.cases import layouts
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import in_turn
from tests.support.oracles import reference

DATA = "ConvolutionBackpropData"
_ONE, _TWO, _NO = (1, 1), (2, 2), (0, 0)
CONVOLUTIONS = {
    "no pads": Convolution(2, 1, 3, 16, (41, 39), (20, 19), (3, 3), _TWO, _ONE, _NO, _NO),
    "pads": Convolution(2, 1, 3, 16, (41, 39), (21, 20), (3, 3), _TWO, _ONE, _ONE, _ONE),
    "pads at the end": Convolution(1, 1, 18, 16, (41, 39), (20, 19), (3, 3), _TWO, _ONE, _NO, _ONE),
    "thrice": Convolution(1, 1, 3, 16, (61,), (20,), (4,), (3,), (1,), (0,), (0,)),
    "groups": Convolution(2, 16, 64, 64, (41, 39), (20, 19), (3, 3), _TWO, _ONE, _NO, _NO),
    "depthwise": Convolution(2, 32, 32, 32, (41, 39), (21, 20), (3, 3), _TWO, _ONE, _ONE, _ONE),
}


@pytest.mark.parametrize(("name", "formats"), in_turn(2, list(CONVOLUTIONS), [("NXC", "XIO"), ("NCX", "OIX")]))
def test_every_schedule_of_phases_made_alike(name: str, formats: tuple[str, str]) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    case, target = Case(DATA, CONVOLUTIONS[name], *formats), parse_target(None)
    problem = case.call.problem()
    assert len({tuple(part.positions) for part in _parts(problem)}) == 1
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(np.float32)
    rules = schedules.applicable(problem, target)
    assert len(rules) > 1
    for rule in rules:
        got = run(schedules.schedule(problem, target, rule), case.arrays(tensors), target)
        assert_same(layouts.to_canonical(got, case.axes(case.result)), expected)


def test_phases_of_few_positions_stay_as_they_are() -> None:
    conv = Convolution(1, 1, 16, 16, (7, 7), (3, 3), (3, 3), _TWO, _ONE, _NO, _NO)
    found = _parts(Case(DATA, conv).call.problem())
    assert [part.positions for part in found] == [(4, 4), (4, 3), (3, 4), (3, 3)]


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_work_items_pack_the_data_of_a_stem_of_odd_size(level: str) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    conv = Convolution(8, 1, 3, 32, (299, 299), (149, 149), (3, 3), _TWO, _ONE, _NO, _NO)
    made = schedules.schedule(Case(DATA, conv).call.problem(), parse_target(f"llvm -mcpu={level}"), "data-positions")
    assert made.plan["packs"] == "work_item"


def _parts(problem: Any) -> Any:
    from tvmconvgrad.te.data_gradient import phase_convolutions

    return phase_convolutions(problem)


@pytest.mark.parametrize("channels", [128, 256, 512])
def test_the_vectors_of_a_tile_share_the_data_that_a_phase_reads(channels: int) -> None:
    """Of channels in several vectors, each element of y is loaded once, whatever partition of channels a work item
    has."""
    from tests.support.cpu.assembly import count, simple_loops
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.targets import parse_target

    convolution = Convolution(4, 1, channels, channels, (16, 16), (8, 8), (4, 4), _TWO, _ONE, _ONE, _ONE)
    target = parse_target("llvm -mcpu=x86-64-v3 -mtriple=x86_64-linux-gnu")
    built = llvm.build(Case(DATA, convolution).call.problem(), target, "data-channels")
    vectors = built.scheduled.plan["tile"]["n"] // 8
    assert vectors > 1
    loops = list(simple_loops(built.executable.mod.inspect_source("s")))
    products = [loop for loop in loops if count(loop, r"vfmadd\d+ps")]
    assert products
    assert all(vectors * count(loop, "vbroadcastss") == count(loop, r"vfmadd\d+ps") for loop in products)


NOT_ALIKE = Convolution(1, 1, 1, 1, (6, 1), (2, 1), (5, 1), (3, 1), _ONE, (1, 0), (1, 0))
"""Two phases that a tile takes together begin one position apart: its sum has three rows, where each phase has two."""


@pytest.mark.parametrize("conv", [NOT_ALIKE, *(conv for conv in CONVOLUTIONS.values() if conv.rank == 2)])
def test_a_tiles_rows_divide_those_of_its_sums(conv: Convolution) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.schedules.cpu.data.sizes import DataSizes
    from tvmconvgrad.schedules.cpu.data.tiles import tiles

    machine = CpuMachine.of(parse_target("llvm -mcpu=x86-64-v4"))
    sizes = DataSizes(Case(DATA, conv, "NCX", "OIX", output_padding=conv.beyond).call.problem())
    found = tiles(machine, "positions", sizes)
    assert found
    assert all(positions[-2] % tile.rows == 0 for tile in found for positions in sizes.positions(tile))


def test_work_items_that_would_correspond_with_other_rows() -> None:
    """They were counted by whole tiles, of which a row was left over, and then could not share their data."""
    case = Case(DATA, NOT_ALIKE, "NCX", "OIX", output_padding=NOT_ALIKE.beyond)
    tensors = operands(NOT_ALIKE, case.result)
    assert_same(case.run(tensors), reference.gradient(NOT_ALIKE, case.result, tensors).astype(np.float32))
