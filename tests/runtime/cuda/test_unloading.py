"""Modules on a GPU go with their kernels; not before what runs has ended, and not while a graph may run them again."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tests.runtime.cuda.tensors import DATA, Foreign, empty, example
from tests.support.cases.case import assert_same
from tests.support.gpu.driver import FakeGpus
from tvmconvgrad.common import process
from tvmconvgrad.runtime import memory
from tvmconvgrad.runtime.cuda import function
from tvmconvgrad.runtime.cuda.function import CudaFunction
from tvmconvgrad.runtime.cuda.kernel import CudaKernel
from tvmconvgrad.runtime.memory import Loaded

BOUND = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory of few kernels, and of none of before."""
    process.forget()
    monkeypatch.setenv(memory.VARIABLE, str(BOUND))
    monkeypatch.setattr(function, "_recorded", set())


def call_copies(count: int, gpu: int = 0) -> None:
    """Call kernels that are copies of one, each of which must be right."""
    op, inputs, expected = example(DATA)
    one = op.compile(*(array.shape for array in inputs), target="cuda -arch=sm_90")
    code: Any = one.function
    for number in range(count):
        gc.collect()
        found = memory.kernels.get(
            (gpu, number), lambda: Loaded(CudaFunction(code._code, code._launches, code._arch), {})
        )
        kernel = CudaKernel(one.problem, one.target, "copy", one.workspace_bytes, found.function)
        out = empty(expected)
        kernel(*(Foreign(array, gpu) for array in inputs), Foreign(out, gpu))
        assert_same(out, expected)


def count(gpus: FakeGpus, word: str) -> int:
    return sum(line.startswith(word) for line in gpus.log)


@pytest.mark.parametrize("gpu", [0, 1])
def test_modules_go_with_the_least_recently_used_kernels(gpu: int, gpus: FakeGpus) -> None:
    call_copies(30, gpu)
    assert count(gpus, f"load on {gpu}") == 30
    assert 30 - BOUND - 1 <= count(gpus, f"unload on {gpu}") <= 30 - BOUND
    for before, line in zip(gpus.log, gpus.log[1:]):
        if line.startswith("unload"):
            assert before.startswith(("synchronize all", "unload"))


def test_what_a_graph_may_run_again_stays(gpus: FakeGpus) -> None:
    gpus.fail("cuStreamIsCapturing", 1)
    call_copies(12)
    assert (count(gpus, "load on 0"), count(gpus, "unload on 0")) == (12, 0)
    assert len(function._recorded) == 12


def test_nothing_is_unloaded_while_the_driver_will_not_wait(gpus: FakeGpus) -> None:
    gpus.fail("cuCtxSynchronize", 900)
    call_copies(12)
    assert count(gpus, "unload on 0") == 0
    gpus.set_up(devices=2)
    call_copies(13)
    assert count(gpus, "unload on 0") >= 12 - BOUND
