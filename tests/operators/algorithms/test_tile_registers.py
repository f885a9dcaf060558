"""Sums of bf16 in AMX's tile registers: with its instructions emulated as Intel's manual defines them, and natively."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from tvm import tirx

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.cases.sampling import covering, in_turn
from tests.support.cpu.amx import AMX, HAS_AMX, WAYS, library
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.runtime.native import load_function
from tvmconvgrad.runtime.threads import get_num_threads, set_num_threads
from tvmconvgrad.tir.rewriting import nodes

RULES = ("data-tiles", "data-tiles-positions", "weights-tiles")
ONE, NO = (1, 1), (0, 0)
FORMATS = ("NXC", "NCX")
CONVOLUTIONS = [
    # tiles side by side in a row, and in neighbouring rows; a single one; of one row each
    Convolution(2, 1, 32, 64, (4, 28), (4, 28), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 32, 48, (6, 14), (6, 14), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 32, 80, (5, 7), (5, 7), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 16, 16, (5, 1), (5, 1), (3, 1), ONE, ONE, (1, 0), (1, 0)),
    # tails of channels; K blocks of fewer pairs than a tile has
    Convolution(2, 1, 17, 33, (4, 11), (4, 11), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 34, 100, (3, 18), (3, 18), ONE, ONE, ONE, NO, NO),
    # few channels, of which an instruction adds up several taps: of first layers; taps that fill several instructions,
    # or none evenly; groups; dilated taps, each alone
    Convolution(2, 1, 3, 64, (13, 30), (7, 15), (7, 7), (2, 2), ONE, (3, 3), (3, 3)),
    Convolution(2, 1, 1, 20, (5, 20), (5, 20), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 1, 3, 16, (19, 35), (3, 7), (11, 11), (4, 4), ONE, NO, NO),
    Convolution(1, 1, 4, 18, (32, 32), (2, 2), (16, 16), (16, 16), ONE, NO, NO),
    Convolution(1, 1, 3, 16, (3, 6, 10), (3, 6, 10), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Convolution(2, 4, 32, 32, (4, 14), (4, 14), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 3, 15, 24, (5, 13), (3, 7), (3, 3), (2, 2), ONE, ONE, ONE),
    Convolution(1, 1, 20, 10, (4, 16), (4, 14), (1, 3), ONE, ONE, NO, NO),
    Convolution(1, 1, 6, 32, (4, 16), (4, 12), (1, 3), ONE, (1, 2), NO, NO),
    Convolution(1, 1, 2, 16, (40,), (36,), (5,), (1,), (1,), (0,), (0,)),
    # of which rows of tiles are taps: several images at once, or halves of one; taps that are dilated; more channels
    Convolution(4, 1, 3, 32, (9, 40), (9, 40), (5, 3), ONE, ONE, (2, 1), (2, 1)),
    Convolution(1, 1, 2, 48, (11, 35), (5, 16), (3, 5), (2, 2), ONE, NO, NO),
    Convolution(2, 2, 8, 40, (8, 20), (4, 20), (3, 3), ONE, (2, 1), (0, 1), (0, 1)),
    Convolution(2, 1, 13, 16, (4, 7, 16), (4, 7, 16), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    # rows that no number of positions divides: with padding and without, strided, of an image's halves, in 1-D and 3-D
    Convolution(2, 1, 33, 47, (3, 53), (3, 53), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 1, 16, 64, (7, 31), (5, 29), (3, 3), ONE, ONE, NO, NO),
    Convolution(2, 1, 24, 32, (3, 40), (2, 19), (2, 3), (1, 2), ONE, NO, NO),
    Convolution(4, 1, 16, 16, (136,), (67,), (3,), (2,), (1,), (0,), (0,)),
    Convolution(2, 1, 16, 17, (2, 3, 37), (2, 3, 37), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1)),
    # strides, whose phases have work items of their own or together; dilations, gathered elements
    Convolution(3, 1, 16, 32, (13, 9), (6, 5), (3, 3), (2, 2), (1, 2), (1, 2), (0, 2)),
    Convolution(1, 1, 32, 64, (3, 3), (2, 2), (3, 3), (2, 2), ONE, ONE, ONE),
    Convolution(2, 1, 64, 32, (16, 16), (8, 8), (4, 4), (2, 2), ONE, ONE, ONE),
    Convolution(4, 1, 48, 64, (8, 16), (4, 8), ONE, (2, 2), ONE, NO, NO),
    Convolution(2, 1, 32, 32, (4, 50), (4, 20), (3, 3), ONE, (1, 15), (1, 0), (1, 0)),
    Convolution(2, 1, 32, 32, (144,), (16,), (2,), (1,), (128,), (0,), (0,)),
    # output phases that begin at the same position, among the channels: one or several taps each, with a tail
    Convolution(2, 1, 32, 64, (8, 12), (4, 6), (2, 2), (2, 2), ONE, NO, NO),
    Convolution(2, 1, 64, 32, (18, 18), (8, 8), (4, 4), (2, 2), ONE, NO, NO),
    Convolution(1, 1, 48, 32, (10, 11), (3, 5), (3, 2), (3, 2), ONE, NO, NO),
    Convolution(3, 1, 16, 24, (4, 4, 6), (2, 2, 3), (2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0)),
    # fewer positions than taps, where the filter depends on the position; phases among the channels; 1-D, an odd batch
    Convolution(1, 1, 16, 32, (2, 8), (2, 8), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 32, 32, (2, 2), (2, 2), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(1, 1, 32, 64, (4, 4), (1, 1), (4, 4), ONE, ONE, NO, NO),
    Convolution(2, 1, 64, 64, (32, 32), (16, 16), (4, 4), (2, 2), ONE, ONE, ONE),
    Convolution(1, 1, 64, 64, (64,), (32,), (3,), (2,), (1,), (1,), (0,)),
    # no tap moves along the rows, which become one long row; the taps of a group; dilated, with one image
    Convolution(2, 1, 32, 48, (9, 17), (9, 17), (7, 1), ONE, ONE, (3, 0), (3, 0)),
    Convolution(2, 2, 20, 32, (6, 3, 5), (6, 3, 5), (3, 1, 1), (1, 1, 1), (1, 1, 1), (1, 0, 0), (1, 0, 0)),
    Convolution(1, 1, 16, 16, (40, 3), (38, 3), (5, 1), ONE, (2, 1), (2, 0), (4, 0)),
    # halves of the only image; many channels; groups; 1-D and 3-D
    Convolution(1, 1, 32, 48, (7, 9), (7, 9), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 1, 512, 32, (4, 14), (4, 14), (3, 3), ONE, ONE, ONE, ONE),
    Convolution(2, 3, 60, 96, (7, 8), (4, 4), (3, 3), (2, 2), ONE, ONE, ONE),
    Convolution(2, 1, 16, 24, (40,), (36,), (3,), (1,), (2,), (0,), (0,)),
    Convolution(2, 1, 20, 24, (3, 4, 6), (3, 4, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
]


def cases() -> list[Case]:
    """All convolutions and operators, in the layouts in turn."""
    found: list[Case] = []
    for conv in CONVOLUTIONS:
        for operator in OPERATORS:
            formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(operator)]
            chosen = [("NXC", "XIO"), formats[(len(found) // 2) % len(formats)]]
            found += [Case(operator, conv, *each, "bf16") for each in dict.fromkeys(chosen)]
    return [case for case in found if rules_for(case)]


def rules_for(case: Case) -> list[str]:
    return [rule for rule in schedules.applicable(case.call.problem(), parse_target(AMX)) if rule in RULES]


def computed(
    case: Case, tensors: Tensors, way: str, choices: Mapping[str, int] | None = None, rule: str | None = None
) -> Array:
    """The result, in canonical layout, by a rule for tile registers (if none is named, that which is the cheapest),
    with numbers of it that a search might draw."""
    problem = case.call.problem()
    rule = rule or rules_for(case)[0]
    made = schedules.schedule(problem, parse_target(AMX), rule, choices)
    first, second = map(np.ascontiguousarray, case.arrays(tensors))
    result = np.full(case.shape(case.result), np.nan, DTYPES["bf16"])
    load_function(library(made, way), problem)(first.ctypes.data, second.ctypes.data, result.ctypes.data)
    return layouts.to_canonical(result, case.axes(case.result))


def check(case: Case, way: str, choices: Mapping[str, int] | None = None, only: str | None = None) -> None:
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES["bf16"])
    for rule in [only] if only else rules_for(case):
        assert_same(computed(case, tensors, way, choices, rule), expected)


def random_tensors(case: Case, scale: float = 1.0) -> Tensors:
    """Numbers whose sums depend on their order."""
    rng = np.random.default_rng(7)
    shapes = case.convolution.shapes
    return {name: (scale * rng.standard_normal(shapes[name])).astype(np.float32) for name in case.inputs}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", covering(cases(), second=1, each=lambda case: [case.convolution]))
def test_sums_are_the_same(case: Case, way: str) -> None:
    check(case, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "operator", [*OPERATORS[:2], *(pytest.param(each, marks=pytest.mark.nightly) for each in OPERATORS[2:])]
)
def test_every_number_that_a_search_may_draw(operator: str, way: str) -> None:
    many = Convolution(2, 1, 64, 64, (12, 12), (12, 12), (3, 3), ONE, ONE, ONE, ONE)
    few = Convolution(2, 1, 3, 32, (12, 19), (6, 10), (3, 3), (2, 2), ONE, ONE, ONE)
    for case in (Case(operator, conv, data_format, dtype="bf16") for conv in (many, few) for data_format in FORMATS):
        for rule in rules_for(case):
            candidates = schedules.schedule(case.call.problem(), parse_target(AMX), rule).candidates
            assert candidates
            for name, values in candidates.items():
                check(case, way, {name: values[-1]}, rule)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tile", range(6))
def test_blocks_of_a_single_row_begin_at_zero(tile: int, way: str) -> None:
    """One after the other, in the same work item."""
    for conv in (Convolution(1, 1, 17, 100, (1,), (1,), (1,), (1,), (1,), (0,), (0,)), CONVOLUTIONS[3]):
        check(
            Case("ConvTransposeBackpropData", conv, dtype="bf16"),
            way,
            {"tile": tile, "n_partitions": 1, "partition_tiles": 64},
        )


@pytest.mark.parametrize(("stride", "taps"), [(1, 1), (2, 1), (3, 1), (4, 1), (2, 3), (3, 5)])
def test_rows_of_two_images_are_interleaved_by_vectors(stride: int, taps: int) -> None:
    """Whatever the stride: not one bf16 after the other. With padding a loop is left, for blocks that reach beyond the
    tensor."""
    pads = (taps // 2,) * 2
    strided = {"strides": (stride,) * 2, "dilations": ONE, "pads_begin": pads, "pads_end": pads, "data_format": "NCX"}
    operator = cg.ConvolutionBackpropFilters(**strided, filter_shape=(taps, taps, 32, 32))
    size = 27 * stride + 1
    problem = operator.problem((2, 32, size, size), (2, 32, 28, 28), dtype="bf16")
    assembly = llvm.build(problem, parse_target(AMX), "weights-tiles").assembly()
    assert "tdpbf16ps" in assembly
    assert len(re.findall(r"\tmovw\t", assembly)) <= (0 if taps == 1 else 16)


def test_sums_of_which_some_are_a_single_work_item() -> None:
    """Those have no loop over work items, which would configure the tile registers."""
    conv = Convolution(1, 1, 32, 64, (9, 6), (5, 6), (3, 1), (2, 1), ONE, (1, 0), (1, 0))
    case = Case("ConvolutionBackpropData", conv, dtype="bf16")
    made = schedules.schedule(case.call.problem(), parse_target(AMX), "data-tiles", {"partition_tiles": 4})
    loops = [int(loop.extent) for loop in nodes(made.module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
    assert {1, 5} <= set(loops)
    check(case, WAYS[HAS_AMX].values[0], {"partition_tiles": 4})


@pytest.mark.skipif(not HAS_AMX, reason="this CPU has no AMX_BF16")
@pytest.mark.parametrize("scale", [1.0, 2.0**-63, 2.0**63])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_cpu_rounds_as_the_manual_says(operator: str, scale: float) -> None:
    """Products that are normal, that are about the least normal number, and about the greatest."""
    case = Case(operator, CONVOLUTIONS[0], dtype="bf16")
    tensors = random_tensors(case, scale)
    emulated, native = (computed(case, tensors, way) for way in ("emulated", "native"))
    assert np.count_nonzero(native) > native.size // 2
    assert emulated.tobytes() == native.tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_the_number_of_threads_changes_no_bit(operator: str, way: str) -> None:
    case = Case(operator, CONVOLUTIONS[0], dtype="bf16")
    tensors, before = random_tensors(case), get_num_threads()
    results = []
    for count in (1, 3):
        set_num_threads(count)
        results.append(computed(case, tensors, way).tobytes())
    set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_numbers_below_the_least_normal_one_are_zeros(operator: str, way: str) -> None:
    case = Case(operator, CONVOLUTIONS[0], dtype="bf16")
    tensors = operands(case.convolution, case.result)
    tensors[case.inputs[0]] *= np.float32(2.0**-133)
    assert not computed(case, tensors, way).any()


@pytest.mark.parametrize(  # rows that are whole, and rows that are rounded up
    ("operator", "width", "value"), in_turn(2, OPERATORS, (11, 40), (np.inf, np.nan))
)
def test_infinities_reach_what_they_meet_and_nothing_else(operator: str, width: int, value: float) -> None:
    """The last column of 40 meets nothing."""
    conv = Convolution(1, 1, 17, 18, (5, width), (4, (width - 3) // 2 + 1), (2, 3), (1, 2), ONE, NO, NO)
    case = Case(operator, conv, dtype="bf16")
    ones = {name: np.ones(case.convolution.shapes[name], np.float32) for name in case.inputs}
    for name, row in product([name for name in ones if name != "w"], (0, -1)):
        tensors = {**ones, name: ones[name].copy()}
        tensors[name][0, 2, row, -1] = value
        expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES["bf16"])
        assert np.isfinite(expected).any()
        assert_same(computed(case, tensors, WAYS[HAS_AMX].values[0]), expected)
