"""Programs with tile registers round their results by an instruction; others do not, nor do those that store
non-temporally or by masks.

That results are rounded right: operators/algorithms/test_tile_registers.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvmconvgrad as cg
from tests.support.cpu.amx import AMX
from tvmconvgrad import schedules
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.epilogue import Epilogue

VECTORS = "llvm -mcpu=x86-64-v4 -mattr=+avx512bf16 -mtriple=x86_64-linux-gnu"


def forward(data_format: str) -> Problem:
    """A 1x1 forward of 32 to 64 channels."""
    operator = cg.ConvTransposeBackpropData(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), data_format=data_format, filter_format="XIO"
    )
    shape = (4, 300, 32) if data_format == "NXC" else (4, 32, 300)
    return operator.problem(shape, (1, 64, 32), dtype="bf16")


def assembly(problem: Problem, target: str, rule: str, non_temporal: int) -> str:
    made = schedules.schedule(problem, parse_target(target), rule)
    given = {"non_temporal": non_temporal} if "non_temporal" in made.candidates else {}
    made = schedules.schedule(problem, parse_target(target), rule, given)
    return llvm.build_scheduled(made, parse_target(target)).assembly()


@pytest.mark.parametrize(("data_format", "rule"), [("NXC", "data-tiles"), ("NCX", "data-tiles-positions")])
def test_programs_with_tile_registers_round_by_an_instruction(data_format: str, rule: str) -> None:
    found = assembly(forward(data_format), AMX, rule, non_temporal=0)
    assert "tdpbf16ps" in found
    assert "vcvtneps2bf16" in found


@pytest.mark.parametrize("epilogue", [Epilogue(bias=True), Epilogue(accumulate=True)], ids=str)
def test_a_sum_that_something_is_added_to_keeps_small_numbers(epilogue: Epilogue) -> None:
    found = assembly(replace(forward("NXC"), epilogue=epilogue), AMX, "data-tiles", non_temporal=0)
    assert "tdpbf16ps" in found
    assert "vcvtneps2bf16" not in found


def test_programs_with_non_temporal_stores_do_not() -> None:
    """Every vector has a non-temporal store, beside a plain one for other addresses."""
    found = assembly(forward("NXC"), AMX, "data-tiles", non_temporal=1)
    assert "vcvtneps2bf16" not in found
    assert found.count("vmovnt") >= 32


def test_programs_that_store_strided_results_by_masks_do_not() -> None:
    """As of ResNet-50's res4a_branch2a."""
    operator = cg.ConvolutionBackpropData(
        strides=(2, 2), dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), data_format="NCX", filter_format="OIX"
    )
    problem = operator.problem((2, 64, 14, 14), (64, 96, 1, 1), shape_input=(2, 96, 28, 28), dtype="bf16")
    found = assembly(problem, AMX, "data-tiles-positions", non_temporal=0)
    assert "tdpbf16ps" in found
    assert "vcvtneps2bf16" not in found


def test_sums_of_vectors_keep_small_numbers() -> None:
    found = assembly(forward("NXC"), VECTORS, "data-channels", non_temporal=0)
    assert "vdpbf16ps" in found
    assert "vcvtneps2bf16" not in found
