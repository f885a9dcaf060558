"""Depthwise sums in NXC that read their operands where they lie, with their padding."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import tvm
from tvm.ir import Call, TensorLoad
from tvm.s_tir.stmt import SBlock

from tests.support.building.scheduled import run
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler import pipeline
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.tir.rewriting import IF_THEN_ELSE, nodes

FORWARD, DATA = "ConvTransposeBackpropData", "ConvolutionBackpropData"
ONE, TWO, NO = (1, 1), (2, 2), (0, 0)
SAME = Convolution(2, 48, 48, 48, (9, 30), (9, 30), (3, 3), ONE, ONE, ONE, ONE)
CONVOLUTIONS = {
    "same": SAME,
    "several tiles a row": Convolution(1, 32, 32, 32, (5, 61), (5, 61), (3, 7), ONE, ONE, (1, 3), (1, 3)),
    "strided": Convolution(2, 32, 32, 32, (14, 28), (7, 14), (3, 3), TWO, ONE, ONE, ONE),
    "surplus of the last phase": Convolution(1, 16, 16, 16, (31, 63), (16, 32), (3, 3), TWO, ONE, NO, TWO),
    "dilated": Convolution(1, 16, 16, 16, (12, 17), (12, 17), (3, 3), ONE, (2, 5), (2, 5), (2, 5)),
    "wide pads": Convolution(1, 16, 16, 16, (3, 4), (5, 7), (3, 3), ONE, ONE, TWO, (2, 3)),
    "1-D": Convolution(2, 32, 32, 32, (63,), (32,), (3,), (2,), (1,), (0,), (2,)),
    "3-D": Convolution(1, 16, 16, 16, (4, 5, 9), (4, 5, 9), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
}
TARGETS = ["sapphirerapids", "znver3", "neoverse-n1"]


def scheduled(case: Case, cpu: str | None) -> Scheduled:
    """By the rule with vectors over groups, for a CPU or, without a name, for this one."""
    architecture = "aarch64" if cpu and cpu.startswith("neoverse") else "x86_64"
    target = parse_target(f"llvm -mtriple={architecture}-linux-gnu -mcpu={cpu}" if cpu else None)
    return schedules.schedule(case.call.problem(), target, "data-groups")


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("operator", [FORWARD, DATA])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_an_accumulator_is_no_larger_than_its_tile(name: str, operator: str, cpu: str) -> None:
    """TVM would give the accumulator a whole row if it saw an `if` in its sum."""
    made = scheduled(Case(operator, CONVOLUTIONS[name]), cpu)
    planned = tvm.transform.Sequential(pipeline._plan_memory())(made.module)
    allocated = [buffer for block in nodes(planned, SBlock) for buffer in block.alloc_buffers]
    buffers = [buffer for buffer in allocated if str(buffer.scope()) == "local"]
    tile: Any = made.plan["tile"]
    assert buffers
    for buffer in buffers:
        assert prod(map(int, buffer.shape)) <= prod(tile[name] for name in ("positions", "n", "groups", "rows"))


@pytest.mark.parametrize("operator", [FORWARD, DATA])
def test_no_zero_stands_for_a_pad(operator: str) -> None:
    made = scheduled(Case(operator, SAME), "sapphirerapids")
    assert made.plan["packs"] == ""
    assert not [call for call in nodes(made.module, Call) if call.op.same_as(IF_THEN_ELSE) and nodes(call, TensorLoad)]


@pytest.mark.parametrize(
    ("groups", "dtype", "stride", "in_place"),
    [(48, "f32", 1, True), (33, "f32", 1, False), (48, "bf16", 1, False), (48, "bf16", 2, True), (48, "f16", 2, True)],
)
def test_which_data_is_read_in_place(groups: int, dtype: str, stride: int, in_place: bool) -> None:
    """Where vectors have whole groups, and in 16 bits few products for each element."""
    conv = Convolution(2, groups, groups, groups, (28, 28), (28 // stride,) * 2, (3, 3), (stride,) * 2, ONE, ONE, ONE)
    made = scheduled(Case(FORWARD, conv, dtype=dtype), "sapphirerapids")
    assert (made.plan["packs"] == "") == in_place


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("operator", [FORWARD, DATA])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sums_are_the_same(name: str, operator: str, dtype: str) -> None:
    case = Case(operator, CONVOLUTIONS[name], dtype=dtype)
    tensors = operands(case.convolution, case.result)
    found = run(scheduled(case, None), case.arrays(tensors), parse_target(None))
    expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES[dtype])
    assert_same(layouts.to_canonical(found, case.axes(case.result)), expected)


@pytest.mark.parametrize(("channels", "size", "stride"), [(576, 14, 2), (384, 14, 1), (192, 28, 1)])
def test_depthwise_cache_blocks_span_pages_that_the_core_follows(channels: int, size: int, stride: int) -> None:
    """What a weights gradient's block reads of x and y, but for the rows of its border and rows that are too long."""
    out = size // stride
    conv = Convolution(16, channels, channels, channels, (size,) * 2, (out,) * 2, (3, 3), (stride,) * 2, ONE, ONE, ONE)
    problem = Case("ConvolutionBackpropFilters", conv).call.problem()
    blocks = {}
    for cpu in ("sapphirerapids", "znver5"):
        plan = str(schedules.schedule(problem, parse_target(f"llvm -mcpu={cpu}"), "weights-groups"))
        (found,) = re.findall(r"cache_block=\(([\d, ]+)\)", plan)
        blocks[cpu] = prod(map(int, found.split(",")))
    limit = max(32 * 4096 // (4 * channels * (stride**2 + 1)), out)
    assert blocks["sapphirerapids"] <= limit
    assert blocks["sapphirerapids"] < blocks["znver5"]
