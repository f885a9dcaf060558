"""Results that are larger than a core's share of the last-level cache, and so written by non-temporal stores: at any
address."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, operands
from tvmconvgrad.machines.host import host_features

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.support.oracles import torch_reference

DATA, FORWARD = "ConvolutionBackpropData", "ConvTransposeBackpropData"
LINE = 64
UNTOUCHED = 17

_ONE, _NO = (1, 1), (0, 0)
POINTWISE = Convolution(2, 1, 64, 8, (97, 96), (97, 96), _ONE, _ONE, _ONE, _NO, _NO)
WINDOW = Convolution(2, 1, 96, 8, (97, 80), (97, 80), (3, 3), _ONE, _ONE, _ONE, _ONE)
PHASES = Convolution(2, 1, 64, 8, (97, 95), (49, 48), (3, 3), (2, 2), _ONE, _ONE, _ONE)
GROUPED = Convolution(2, 2, 64, 16, (95, 97), (95, 97), (3, 3), _ONE, _ONE, _ONE, _ONE)
DEPTHWISE = Convolution(2, 64, 64, 64, (115, 113), (115, 113), (3, 3), _ONE, _ONE, _ONE, _ONE)
DEPTHWISE_PHASES = Convolution(2, 64, 64, 64, (148, 145), (74, 73), (3, 3), (2, 2), _ONE, _ONE, _ONE)
DEPTHWISE_PAIRS = Convolution(2, 64, 64, 64, (148, 146), (74, 73), (4, 4), (2, 2), _ONE, _ONE, _ONE)
BOTH_WAYS = Convolution(2, 1, 64, 64, (96, 96), (96, 96), _ONE, _ONE, _ONE, _NO, _NO)

CASES = [
    *(Case(DATA, conv) for conv in (POINTWISE, WINDOW, PHASES, GROUPED, DEPTHWISE, DEPTHWISE_PHASES)),
    *(Case(FORWARD, conv) for conv in (BOTH_WAYS, DEPTHWISE)),
    *(Case(DATA, conv, "NCX", "OIX") for conv in (POINTWISE, WINDOW)),
    *(Case(DATA, conv, "NCX", "OIX") for conv in (DEPTHWISE_PHASES, DEPTHWISE_PAIRS)),
    *(Case(DATA, DEPTHWISE_PHASES.resized(4), "NCX", "OIX", dtype) for dtype in ("f16", "bf16")),
    *(Case(DATA, conv.resized(4), dtype=dtype) for conv in (POINTWISE, DEPTHWISE) for dtype in ("f16", "bf16")),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_element_is_stored_and_nothing_else(case: Case, threads: int) -> None:
    kernel = case.call.compile()
    if case.dtype != "f32" and case.convolution.groups == 1 and "avx512f" not in host_features():
        pytest.skip("without AVX-512 a tile's results of 16 bits are half a cache line")
    assert "non_temporal=1" in kernel.schedule
    tensors = operands(case.convolution, case.result)
    inputs = case.arrays(tensors)
    expected = torch_reference.gradient(case.convolution, case.result, tensors).astype(DTYPES[case.dtype])
    before = cg.get_num_threads()
    cg.set_num_threads(threads)
    try:
        for offset in (0, expected.itemsize, LINE // 2):
            memory, out = at_offset(case, offset)
            kernel(*inputs, out=out)
            assert_same(layouts.to_canonical(out, case.axes(case.result)), expected)
            begin = out.ctypes.data - memory.ctypes.data
            around = np.concatenate([memory[:begin], memory[begin + out.nbytes :]])
            assert (around == UNTOUCHED).all()
    finally:
        cg.set_num_threads(before)


@pytest.mark.parametrize("case", CASES[:1], ids=str)
def test_results_in_new_pages_go_through_the_caches(case: Case) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target

    problem, target = case.call.problem(), parse_target("llvm -mcpu=x86-64-v4")
    new = replace(problem, in_new_pages=True)
    found = [schedules.schedule(each, target).plan.get("non_temporal") for each in (problem, new)]
    assert found == [1, 0]


def at_offset(case: Case, offset: int) -> tuple[Array, Array]:
    """Memory, and in it a result so many bytes behind the beginning of a cache line."""
    shape, dtype = case.shape(case.result), DTYPES[case.dtype]
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.full(size + 4 * LINE, UNTOUCHED, np.uint8)
    begin = LINE + -memory.ctypes.data % LINE + offset
    return memory, memory[begin : begin + size].view(dtype).reshape(shape)
