"""Threads: of the caller, all calling kernels at once; and of the kernels, whose number changes no bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.cases.layouts import to_canonical
from tests.support.cases.sampling import in_turn
from tests.support.oracles import reference

WIDE = Convolution(8, 1, 24, 40, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
STRIDED = Convolution(3, 1, 3, 17, (33, 29), (17, 15), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
DEPTHWISE = Convolution(4, 20, 20, 20, (19, 23), (19, 23), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
SHALLOW = Convolution(64, 1, 8, 8, (40,), (40,), (3,), (1,), (1,), (1,), (1,))
CONVOLUTIONS = {"wide": WIDE, "strided": STRIDED, "depthwise": DEPTHWISE, "shallow": SHALLOW}


def in_new_thread(work: Callable[[], Array]) -> Array:
    """The result of `work` in a thread that has no pool of workers yet."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=300)


@pytest.mark.parametrize(("name", "operator", "dtype"), in_turn(2, list(CONVOLUTIONS), OPERATORS, ["f32", "bf16"]))
def test_the_number_of_threads_changes_no_bit(name: str, operator: str, dtype: str) -> None:
    # fractions: their sum depends on its order
    case = Case(operator, CONVOLUTIONS[name], dtype=dtype)
    rng = np.random.default_rng(3)
    shapes = case.convolution.shapes
    inputs = case.arrays({role: rng.standard_normal(shapes[role]) for role in case.inputs})
    kernel = case.call.compile()
    results = []
    for count in (1, 2, 3, 8):
        cg.set_num_threads(count)
        assert cg.get_num_threads() == count
        results.append(in_new_thread(lambda: kernel(*inputs)))
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    exact = reference.gradient(case.convolution, case.result, dict(zip(case.inputs, canonical(case, inputs))))
    close = to_canonical(results[0].astype(np.float64), case.axes(case.result))
    assert abs(close - exact).max() < 2**-7 * abs(exact).max()


def canonical(case: Case, inputs: list[Array]) -> list[Array]:
    pairs = zip(case.inputs, inputs, strict=True)
    return [to_canonical(array.astype(np.float64), case.axes(name)) for name, array in pairs]


def together(tasks: list[Callable[[], None]]) -> None:
    """Run all tasks at the same time, each in its own thread; raises what any of them raises."""
    gate = threading.Barrier(len(tasks))

    def start(task: Callable[[], None]) -> None:
        gate.wait(timeout=60)
        task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        for done in [pool.submit(start, task) for task in tasks]:
            done.result(timeout=300)


def repeated(case: Case, seed: int, times: int) -> Callable[[], None]:
    tensors = operands(case.convolution, case.result, seed)
    expected = reference.gradient(case.convolution, case.result, tensors).astype(DTYPES[case.dtype])

    def task() -> None:
        for _ in range(times):
            assert_same(case.run(tensors), expected)

    return task


def test_several_threads_call_one_kernel() -> None:
    case = Case("ConvolutionBackpropFilters", STRIDED)
    together([repeated(case, seed, times=20) for seed in range(8)])


def test_several_threads_call_different_kernels() -> None:
    cases = [Case(operator, conv) for conv in (STRIDED, DEPTHWISE) for operator in OPERATORS]
    together([repeated(case, 0, times=10) for case in cases])


def test_several_threads_ask_for_a_kernel_that_nobody_has_built() -> None:
    conv = Convolution(2, 1, 5, 6, (9, 8), (7, 6), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0))
    together([repeated(Case("ConvTransposeBackpropData", conv, "NCX", "OIX"), seed, times=1) for seed in range(6)])
