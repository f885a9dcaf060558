"""Memory: addresses of any alignment, the workspace, and what happens when there is none."""

from __future__ import annotations

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, WIDE_FILTERS, layer, program
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Convolution
from tvmconvgrad.runtime import kernel as kernels

ONES = (1, 1)
TAILS = Convolution(2, 1, 17, 25, (6, 6), (6, 6), (3, 3), ONES, ONES, ONES, ONES)
UNALIGNED = [Case(operator, TAILS) for operator in ("ConvolutionBackpropFilters", "ConvolutionBackpropData")]
PACKS_ITS_FILTER = cg.ConvolutionBackpropData(strides=ONES, dilations=ONES, pads_begin=ONES, pads_end=ONES)
EVERY_ADDRESS = """
from tests.runtime.native.test_memory import UNALIGNED
from tests.support.cases.case import DTYPES
layers = [layer(case.with_dtype(dtype)) for case in UNALIGNED]
def moved(array, offset):
    memory = np.zeros(array.nbytes + 192, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % 64 == offset % 64
    return copy
wrong = []
for offset in range(0, 65, np.dtype(DTYPES[dtype]).itemsize):
    for kernel, inputs, want in layers:
        for moves in ((offset, 0, 0), (0, offset, 0), (0, 0, offset), (offset, offset, offset)):
            first, second = (moved(array, move) for array, move in zip(inputs, moves))
            out = moved(np.zeros_like(want), moves[2])
            kernel(first, second, out)
            if not np.array_equal(out, want):
                wrong.append((kernel.name, moves))
print(wrong)
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_address_of_an_element(dtype: str) -> None:
    # in a process of its own: TVM's code would crash
    for case in UNALIGNED:
        layer(case.with_dtype(dtype))
    assert program(f"dtype = {dtype!r}\n" + EVERY_ADDRESS) == "[]"


def test_more_workspace_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, inputs, want = layer(WIDE_FILTERS)
    assert kernel.workspace_bytes > 0
    monkeypatch.setattr(kernels, "PHYSICAL_MEMORY", kernel.workspace_bytes - 1)
    out = np.full_like(want, 7)
    with pytest.raises(MemoryError, match=f"workspace of {kernel.workspace_bytes} bytes exceeds"):
        kernel(*inputs, out)
    assert (out == 7).all()
    monkeypatch.setattr(kernels, "PHYSICAL_MEMORY", kernel.workspace_bytes)
    assert_same(kernel(*inputs), want)


def test_a_system_without_memory_for_the_workspace() -> None:
    PACKS_ITS_FILTER.compile((1, 4, 4, 512), (3, 3, 512, 512), schedule="data-positions")
    code = """
import resource
from tests.runtime.native.test_memory import PACKS_ITS_FILTER
first, second = np.ones((1, 4, 4, 512), np.float32), np.ones((3, 3, 512, 512), np.float32)
large = PACKS_ITS_FILTER.compile(first.shape, second.shape, schedule="data-positions")
out = np.empty((1, 4, 4, 512), np.float32)
assert large.workspace_bytes > 8 << 20, large.workspace_bytes
cg.set_num_threads(2)
assert right()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = resource.getrlimit(resource.RLIMIT_AS)
for _ in range(2):
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), limit[1]))
    try:
        large(first, second, out)
        print("no error")
    except MemoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, limit)
large(first, second, out)
print(out[0, 1, 1, 0] == 9 * 512, right())
"""
    expected = ["no memory for the workspace of the kernel"] * 2 + ["True True"]
    assert program(code).splitlines() == expected


def test_the_workspace_is_used_again() -> None:
    code = """
def used():
    return int(open("/proc/self/statm").read().split()[1])
for _ in range(20):
    assert right()
before = used()
for _ in range(300):
    assert right()
print(used() - before < 256)  # pages: one call's workspace is about a hundred
"""
    assert program(code, TVMCONVGRAD_NUM_THREADS="3") == "True"


@pytest.mark.parametrize("case", [FILTERS, WIDE_FILTERS], ids=["small", "wide"])
def test_a_result_that_is_dropped_is_freed(case: Case) -> None:
    kernel, inputs, want = layer(case)
    result = kernel(*inputs)
    assert case is FILTERS or result.ctypes.data % 64 == 0
    memory = result if result.base is None else result.base  # a wide one begins with a cache line, somewhere in it
    assert memory.base is None
    assert memory.flags.owndata
    assert memory.nbytes <= result.nbytes + 64
    assert_same(result, want)


def test_no_shape_is_too_large_to_be_refused_in_words() -> None:
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), filter_shape=(1, 2, 2)
    )
    with pytest.raises(ValueError, match="input_forward"):
        op.compile((2**62, 3, 2), (2**62, 3, 2))
