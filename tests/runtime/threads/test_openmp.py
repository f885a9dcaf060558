"""Kernels on the threads of PyTorch's OpenMP runtime: the same bits as on the own pool, and no second pool."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import WIDE_DATA, WIDE_FILTERS, floats, layer, program
from tests.support.cases.case import Case
from tests.support.cases.convolution import Array
from tvmconvgrad.runtime.openmp import openmp_of_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def by_openmp(kernel: Any, inputs: list[Array], threads: int) -> Array:
    """A kernel's result on so many of PyTorch's threads."""
    openmp = openmp_of_torch(torch)
    if openmp is None:
        pytest.skip("this PyTorch has no OpenMP")
    out = np.full(kernel.problem.output_shape, np.nan, np.float32)
    places = [array.ctypes.data for array in (*inputs, out)]
    kernel.function.run_by_openmp(ctypes.addressof(openmp), threads, *places)
    return out


@pytest.mark.parametrize("case", [WIDE_FILTERS, WIDE_DATA], ids=["filters", "data"])
def test_bits_are_those_of_the_own_pool(case: Case) -> None:
    kernel = case.call.compile()
    inputs = [floats(shape, seed) for seed, shape in enumerate(kernel.problem.input_shapes)]
    cg.set_num_threads(2)
    own = kernel(*inputs).tobytes()
    assert {by_openmp(kernel, inputs, threads).tobytes() for threads in (1, 2, 3, 5)} == {own}


@pytest.mark.parametrize("case", [WIDE_FILTERS, WIDE_DATA], ids=["filters", "data"])
def test_results_inside_of_a_parallel_region(case: Case) -> None:
    kernel, inputs, want = layer(case)
    openmp = openmp_of_torch(torch)
    if openmp is None:
        pytest.skip("this PyTorch has no OpenMP")
    found = []
    parallel = ctypes.CFUNCTYPE(None, WORK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(openmp.parallel)
    parallel(WORK(lambda _: found.append(by_openmp(kernel, inputs, 3))), None, 2, 0)
    assert len(found) == 2
    assert all(np.array_equal(one, want) for one in found)


HEAD = """
import torch
from tests.runtime.threads.test_openmp import by_openmp
def threads():
    return len(os.listdir("/proc/self/task"))
def all_right():
    calls = (kernel, inputs, want), (data, data_inputs, data_want)
    return all(np.array_equal(by_openmp(*call, 3), result) for *call, result in calls)
torch.set_num_threads(3)
torch.zeros(1 << 20).add_(1)
before = threads()
"""


def test_no_thread_is_started_besides_pytorchs() -> None:
    code = """
assert all_right()
print(threads() - before)
cg.set_num_threads(3)
assert right()
print(threads() - before)
"""
    assert program(HEAD + code).split() == ["0", "2"]


def test_a_forked_child_computes() -> None:
    code = """
assert all_right()
child = os.fork()
if child == 0:
    os._exit(7 if all_right() and right() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), all_right())
"""
    assert program(HEAD + code) == "7 True"
