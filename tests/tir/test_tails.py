"""Tiles that reach beyond the channels, or beyond a row's end: what does not belong to the result is left out vector by
vector. Asked lane by lane, LLVM would keep the tile's sums in memory."""

from __future__ import annotations

import re

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target

_IN_MEMORY = re.compile(r"\(%rsp\).*%[yz]mm|%[yz]mm.*\(%rsp\)")


@pytest.mark.parametrize(
    ("groups", "channels", "rule", "dtype"),
    [
        (1, 100, "data-channels", "f32"),
        (1, 100, "data-channels", "bf16"),
        (1, 25, "data-channels", "bf16"),
        (3, 72, "data-channels", "bf16"),
        (1, 36, "data-positions", "f32"),  # rows of 28 in tiles of 32
    ],
)
def test_sums_stay_in_registers(groups: int, channels: int, rule: str, dtype: str) -> None:
    summed = 72 if groups > 1 else 64
    conv = Convolution(8, groups, channels, summed, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv, dtype=dtype).call.problem()
    target = parse_target("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu")
    code = str(llvm.build(problem, target, rule).executable.mod.inspect_source("s")).splitlines()
    places = [place for place, line in enumerate(code) if "vfmadd" in line]
    assert len(places) >= 28
    summing = code[places[0] : places[-1]]
    assert sum(_IN_MEMORY.search(line) is not None for line in summing) <= 0.15 * len(places)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("mcpu", "row", "masked"), [
    ("x86-64-v4", 7, True),
    ("x86-64-v4", 30, True),
    ("x86-64-v4", 16, False),
    ("x86-64-v4", 17, False),  # LLVM 22 gets masked stores of a single element wrong, truncated to 16 bits
    ("x86-64-v3", 7, False),
])  # fmt: skip
def test_a_known_part_of_a_vector_is_one_masked_store(mcpu: str, row: int, masked: bool, dtype: str) -> None:
    conv = Convolution(1, 32, 32, 32, (8, row), (8, row), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv, "NCX", "OIX", dtype).call.problem()
    target = parse_target(f"llvm -mcpu={mcpu} -mtriple=x86_64-linux-gnu")
    program = str(llvm.build(problem, target, "data-positions").executable.mod.inspect_source("ll"))
    assert ("call void @llvm.masked.store" in program) == masked
