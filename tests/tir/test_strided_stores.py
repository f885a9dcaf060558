"""Vectors that are stored some elements apart: by masked stores, where the CPU has fast ones."""

from __future__ import annotations

import re
from math import prod

import numpy as np
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
@pytest.mark.parametrize(("positions", "stride", "most"), [
    (7, 2, 0),
    (14, 2, 0),
    (30, 2, 0),
    (12, 3, 5),  # of a row of 36, the last one for each of five phases
])  # fmt: skip
def test_a_known_part_of_a_strided_vector_is_not_stored_by_element(
    positions: int, stride: int, most: int, dtype: str
) -> None:
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.targets import parse_target

    row = positions * stride
    conv = Convolution(2, 32, 32, 32, (row, row), (positions,) * 2, (3, 3), (stride,) * 2, (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv, "NCX", "OIX", dtype).call.problem()
    target = parse_target("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu")
    program = str(llvm.build(problem, target, "data-positions").executable.mod.inspect_source("ll"))
    elements = set(re.findall(r"(%\S+) = extractelement", program))
    stored = re.findall(r"store (?:float|half|bfloat|i16) (%[^,]+),", program)
    assert sum(each in elements for each in stored) <= most
    assert "call void @llvm.masked.store" in program


@pytest.mark.parametrize("dtype", ["float32", "uint16", "float16"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_masked_stores_write_what_is_stored_and_nothing_else(lanes: int, stride: int, dtype: str) -> None:
    """Every run of lanes, and some with gaps, of a vector that is truncated to its type, as results are."""
    import tvm
    from tvm import tirx

    from tvmconvgrad.machines.host import host_features
    from tvmconvgrad.tir.passes.statements import sequence
    from tvmconvgrad.tir.passes.strided_stores import masked_stores

    if "avx512bw" not in host_features():
        pytest.skip("this CPU has no AVX512BW")
    runs = [set(range(begin, end)) for begin in range(lanes) for end in range(begin + 1, lanes + 1)]
    kept = [*runs, set(range(0, lanes, 3)), {0, lanes - 1}, {1, lanes // 2, lanes - 1}]
    wide = "uint32" if dtype == "uint16" else "float32"
    sizes = (len(kept), lanes, stride)
    given = tirx.decl_buffer((len(kept) * lanes,), wide, "given")
    out = tirx.decl_buffer((prod(sizes),), dtype, "out")
    one, stores = tirx.IntImm("int64", 1), []
    for number, stored in enumerate(kept):
        vector = tirx.BufferLoad(given, [tirx.Ramp(one * number * lanes, one, lanes)]).astype(f"{dtype}x{lanes}")
        stores += masked_stores(out, tirx.Ramp(one * number * lanes * stride, one * stride, lanes), vector, stored)
    function = tirx.PrimFunc([given, out], sequence(stores)).with_attr("global_symbol", "main")
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mtriple": "x86_64-linux-gnu"}
    built = tvm.compile(tvm.IRModule({"main": function}), target)
    numbers = np.arange(1, len(kept) * lanes + 1).astype(wide).reshape(sizes[:2])
    result = tvm.runtime.tensor(np.full(prod(sizes), 999, dtype))
    built(tvm.runtime.tensor(numbers.ravel()), result)
    expected = np.full(sizes, 999, dtype)
    for number, stored in enumerate(kept):
        for lane in stored:
            expected[number, lane, 0] = numbers[number, lane]
    assert np.array_equal(result.numpy(), expected.ravel())


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
