"""Inputs whose sums are exact, and the rules by which results are judged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cases import layouts
from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.tensors import WrongResult, aligned, check_ours, difference, make_inputs
from tvmconvgrad.bench.workers.session import loops
from tvmconvgrad.layers import KINDS, Layer

EXACT = np.array([1.0, 2.0, 1000.0], np.float32)


def test_inputs_are_small_integers() -> None:
    layer = Layer(name="a", batch=3, channels=4, filters=6, input_size=(9, 8), kernel=(3, 2))
    for gradient in layer.gradients():
        job = Job.of(gradient.problem)
        tensors = make_inputs(gradient.problem, job, seed=1)
        assert {role: array.shape for role, array in tensors.items()} == {role: job.shapes[role] for role in job.inputs}
        assert all(np.unique(array).tolist() == [-3, -2, -1, 0, 1, 2, 3] for array in tensors.values())
        again = make_inputs(gradient.problem, job, seed=1)
        assert all(np.array_equal(again[role], tensors[role]) for role in tensors)


def test_the_more_products_the_smaller_integers() -> None:
    for size, largest in ((2**20, 3), (2**22, 2), (2**24, 1)):
        problem = (
            Layer(name="a", batch=1, channels=1, filters=1, input_size=(size,), kernel=(1,)).gradients()[0].problem
        )
        tensors = make_inputs(problem, Job.of(problem), seed=0)
        assert max(int(array.max()) for array in tensors.values()) == largest
    problem = Layer(name="a", batch=2, channels=1, filters=1, input_size=(size,), kernel=(1,)).gradients()[0].problem
    with pytest.raises(ValueError, match=f"sums {2**25} products"):
        make_inputs(problem, Job.of(problem), seed=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_copies_begin_with_a_cache_line(dtype: type) -> None:
    memory = np.arange(1000).astype(dtype)
    for begin in range(8):
        copy = aligned(memory[begin : begin + 60].reshape(3, 20).T)
        assert copy.ctypes.data % 64 == 0
        assert copy.flags.c_contiguous
        assert np.array_equal(copy, np.arange(begin, begin + 60).reshape(3, 20).T)


def test_ours_must_be_the_sum_rounded_once() -> None:
    check_ours("ours", EXACT, EXACT, "f32")
    # 1025 lies between 1024 and 1028 of bf16's three digits
    check_ours("ours", np.array([1024.0], np.float32), np.array([1025.0], np.float32), "bf16")
    check_ours("ours", np.array([np.inf], np.float32), np.array([70000.0], np.float32), "f16")
    for got, dtype in ((1028.0, "bf16"), (1024.0, "f32"), (np.nan, "bf16")):
        with pytest.raises(WrongResult, match=r"ours: 1 of 1 elements are wrong: at \(0,\)"):
            check_ours("ours", np.array([got], np.float32), np.array([1025.0], np.float32), dtype)


def test_peers_must_be_equal_or_near() -> None:
    assert difference(EXACT, EXACT, "f32") is None
    assert difference(np.array([1.0, 2.5, 1000.0], np.float32), EXACT, "f32") == "1 of 3 elements differ"
    unit = 1000 * 2.0**-7
    assert difference(EXACT + np.float32(2 * unit), EXACT, "bf16") is None
    assert "off by up to 3 units of bf16" in str(difference(EXACT + np.float32(3 * unit), EXACT, "bf16"))
    assert difference(EXACT * np.float32(np.nan), EXACT, "f16") is not None


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_layouts(transposed: bool, data_format: str) -> None:
    op = "ConvTranspose" if transposed else "Convolution"
    layer = Layer(name="a", op=op, batch=2, channels=4, filters=6, input_size=(5, 3), kernel=(2, 1), groups=2)
    for kind in KINDS:
        problem = layer.select(kind, data_format).problem
        job = Job.of(problem)
        name = problem.operator
        for role in ("x", "y", "w"):
            assert job.axes(role) == layouts.permutation(name, role, data_format, problem.filter_format, 2)
            array = np.arange(np.prod(job.shapes[role])).reshape(job.shapes[role])
            assert np.array_equal(job.canonical(role, job.laid_out(role, array)), array)
        assert tuple(job.shape(role) for role in job.inputs) == problem.input_shapes
        assert job.shape(job.result) == problem.output_shape
        if kind == "forward":
            forward = job.as_forward()
            assert (forward.operator, forward.inputs, forward.result) == (op, job.inputs, job.result)
            # what PyTorch and TensorFlow call the filter's axes, and the same memory
            assert forward.filter_format == {"NXC": ("XIO", "XOI"), "NCX": ("OIX", "IOX")}[data_format][transposed]
            assert forward.shape("w") == job.shape("w")
            assert forward.as_gradient() == job


def test_short_runs_are_timed_together() -> None:
    assert [loops(seconds) for seconds in (1.0, 1e-3, 0.5e-3, 1e-5, 0.0)] == [1, 1, 4, 200, 1000]
