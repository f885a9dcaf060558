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
