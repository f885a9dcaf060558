"""Vectors that are stored some elements apart: by masked stores, where the CPU has fast ones."""

from __future__ import annotations

import re

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution


def program(mcpu: str, stride: int, dtype: str) -> str:
    """LLVM's program of a data gradient by channels whose results lie a stride apart."""
    import tvmconvgrad
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.targets import parse_target

    sizes = ((4, 16 * stride), (4, 16), (1, stride), (1, stride))
    case = Case("ConvolutionBackpropData", Convolution(1, 1, 64, 16, *sizes, (1, 1), (0, 0), (0, 0)), "NCX", "OIX")
    operator = getattr(tvmconvgrad, case.operator)(**case.attributes)
    problem = operator.problem(*case.call.shapes, dtype=dtype)
    built = llvm.build(problem, parse_target(f"llvm -mcpu={mcpu} -mtriple=x86_64-linux-gnu"), "data-channels")
    return str(built.executable.mod.inspect_source("ll"))


@pytest.mark.parametrize(("mcpu", "stride", "dtype", "masked"), [
    ("x86-64-v4", 2, "f32", True),
    ("x86-64-v4", 4, "f32", True),
    ("x86-64-v4", 1, "f32", False),
    ("x86-64-v4", 5, "f32", False),
    ("x86-64-v3", 2, "f32", False),
    ("x86-64-v4", 2, "f16", True),
    ("x86-64-v4", 3, "bf16", True),
    ("x86-64-v3 -mattr=+avx512f", 2, "f16", False),  # without AVX512BW
])  # fmt: skip
def test_where_stores_are_masked(mcpu: str, stride: int, dtype: str, masked: bool) -> None:
    assert ("call void @llvm.masked.store" in program(mcpu, stride, dtype)) == masked


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("positions", "stride"), [(7, 2), (14, 2), (12, 3), (30, 2)])
def test_a_known_part_of_a_strided_vector_is_not_stored_by_element(positions: int, stride: int, dtype: str) -> None:
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.targets import parse_target

    row = positions * stride
    conv = Convolution(2, 32, 32, 32, (row, row), (positions,) * 2, (3, 3), (stride,) * 2, (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv, "NCX", "OIX", dtype).call.problem()
    target = parse_target("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu")
    program = str(llvm.build(problem, target, "data-positions").executable.mod.inspect_source("ll"))
    alone = len(re.findall(r"store (?:float|half|bfloat|i16) ", program))  # of 36 elements, a vector has one at its end
    assert alone <= program.count("call void @llvm.masked.store") > 0


def test_columns_whose_first_positions_differ_from_work_item_to_work_item() -> None:
    """Tasks of phases that begin at different positions pack differently many: no extent of a loop is a constant."""
    import tvmconvgrad
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    conv = Convolution(16, 1, 256, 512, (16, 16), (8, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1))
    case = Case("ConvolutionBackpropData", conv, "NCX", "OIX")
    problem = getattr(tvmconvgrad, case.operator)(**case.attributes).problem(*case.call.shapes, dtype="f32")
    target = parse_target("llvm -mcpu=x86-64-v3 -mtriple=x86_64-linux-gnu")
    given = {"packs": 1, "n_partitions": 4}
    assert schedules.schedule(problem, target, "data-channels", given).module is not None
