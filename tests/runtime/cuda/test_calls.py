"""Calls on GPUs, by a driver that notes them: which device, which stream, which memory, and the right result."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.cuda.tensors import DATA, FILTERS, Foreign, empty, example
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Convolution
from tests.support.gpu.driver import FakeGpus
from tests.support.gpu.libraries import aligned
from tvmconvgrad.nvidia.driver import CudaError
from tvmconvgrad.runtime.cuda.kernel import CudaKernel

DEFAULT_STREAM = 1


@pytest.mark.parametrize("case", [DATA, FILTERS], ids=["data", "filters"])
@pytest.mark.parametrize("gpu", [0, 1])
def test_foreign_tensors_on_the_default_stream(case: Case, gpu: int, gpus: FakeGpus) -> None:
    op, inputs, expected = example(case)
    tensors, out = [Foreign(array, gpu) for array in inputs], Foreign(empty(expected), gpu)
    for _ in range(2):
        out.array[...] = np.nan
        assert op(*tensors, out=out) is out
        assert_same(out.array, expected)
    assert all(set(tensor.streams) == {DEFAULT_STREAM} for tensor in (*tensors, out))
    assert gpus.log.count(f"load on {gpu}") == 1
    launches = [line for line in gpus.log if line.startswith("run_")]
    assert launches and all(line.endswith(f" on {DEFAULT_STREAM}") for line in launches)
    assert gpus.log[-1] == f"synchronize {DEFAULT_STREAM}"
    assert gpus.library.fake_contexts() == 0


def test_the_kernel_of_a_gpu(gpus: FakeGpus) -> None:
    gpus.set_up(architecture="sm_80")
    kernel = DATA.call.compile()
    assert not isinstance(kernel, CudaKernel)  # there is no tensor that says so
    op, inputs, expected = example(DATA)
    kernel = op.compile(*DATA.call.shapes, target="cuda")
    assert isinstance(kernel, CudaKernel)
    assert str(kernel.target) == "cuda -arch=sm_80"
    out = Foreign(empty(expected))
    kernel(*map(Foreign, inputs), out)
    assert_same(out.array, expected)


def test_mixed_devices_are_refused_before_anything_is_built(gpus: FakeGpus) -> None:
    op, (first, second), expected = example(DATA)
    with pytest.raises(ValueError, match=r"^filter: is on the CPU, and output_delta on cuda:0, expected one device"):
        op(Foreign(first), second)
    with pytest.raises(ValueError, match=r"^filter: is on cuda:1, and output_delta on the CPU, expected one device"):
        op(first, Foreign(second, 1))
    with pytest.raises(ValueError, match=r"^filter: is on cuda:1, and output_delta on cuda:0"):
        op(Foreign(first), Foreign(second, 1))
    assert gpus.log == []
    tensors = Foreign(first), Foreign(second)
    with pytest.raises(ValueError, match=r"^out: is on cuda:1, and output_delta on cuda:0"):
        op(*tensors, out=Foreign(empty(expected), 1))
    with pytest.raises(ValueError, match=r"^out: is on the CPU, and output_delta on cuda:0"):
        op(*tensors, out=empty(expected))
    assert not [line for line in gpus.log if line.startswith("run_")]


def test_a_kernel_is_for_its_kind_of_device(gpus: FakeGpus) -> None:
    op, inputs, _ = example(DATA)
    with pytest.raises(ValueError, match=r"^output_delta: is on the CPU, expected an NVIDIA GPU, for which the kernel"):
        op(*inputs, target="cuda -arch=sm_90")
    with pytest.raises(ValueError, match=r"^output_delta: is on DLPack device \(2, 0\), expected the CPU"):
        op(*map(Foreign, inputs), target="llvm")
    with pytest.raises(
        ValueError, match=r"^target: code for 'cuda -arch=sm_100' does not run on cuda:0, which is sm_90"
    ):
        op(*map(Foreign, inputs), out=Foreign(empty(example(DATA)[2])), target="cuda -arch=sm_100")


def test_memory_that_no_kernel_takes(gpus: FakeGpus) -> None:
    op, (first, second), expected = example(DATA)
    strided = np.repeat(first, 2, axis=-1)[..., ::2]
    for bad in (strided, aligned(first, offset=4), np.asfortranarray(first)):
        with pytest.raises(ValueError, match=r"^output_delta: a Foreign on a GPU .* aligned to 16 bytes"):
            op(Foreign(bad), Foreign(second), out=Foreign(empty(expected)))
    read_only = empty(expected)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: is read-only"):
        op(Foreign(first), Foreign(second), out=Foreign(read_only))
    with pytest.raises(TypeError, match=r"^out: missing"):
        op(Foreign(first), Foreign(second))
    with pytest.raises(ValueError, match=r"^filter: dtype f16 differs from output_delta's f32"):
        op(Foreign(first), Foreign(second.astype(np.float16)))
    with pytest.raises(ValueError, match=r"^out: shape"):
        op(Foreign(first), Foreign(second), out=Foreign(expected[:1]))


def test_a_result_over_an_input(gpus: FakeGpus) -> None:
    one, zero = (1, 1), (0, 0)
    square = Case("ConvolutionBackpropData", Convolution(1, 1, 4, 4, (4, 4), (4, 4), one, one, one, zero, zero))
    op, (first, second), _ = example(square)
    same = Foreign(first)
    with pytest.raises(TypeError, match=r"^out: missing"):
        op(same, Foreign(second), out=same)


def test_a_fault_of_the_driver_is_its_words(gpus: FakeGpus) -> None:
    op, inputs, expected = example(FILTERS)
    gpus.fail("cuLaunchKernel", 719)
    with pytest.raises(CudaError, match=r"^cuLaunchKernel: a fault \(719\)"):
        op(*map(Foreign, inputs), out=Foreign(empty(expected)))
    assert gpus.library.fake_contexts() == 0


def test_code_that_the_driver_has_no_image_of(gpus: FakeGpus) -> None:
    op, inputs, expected = example(FILTERS)
    gpus.fail("cuModuleLoadData", 209)
    with pytest.raises(ValueError, match=r"^target: code for 'cuda -arch=sm_90a' does not run on cuda:0.*\(209\)"):
        op(*map(Foreign, inputs), out=Foreign(empty(expected)))


def test_sums_without_terms_are_zero(gpus: FakeGpus) -> None:
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), filter_shape=(1, 2, 3)
    )
    out = Foreign(aligned(np.full((1, 2, 3), np.nan, np.float32)))
    op(Foreign(np.empty((0, 4, 2), np.float32)), Foreign(np.empty((0, 4, 3), np.float32)), out=out)
    assert not out.array.any()
    assert gpus.log == ["clear on 1", "synchronize 1"]


def test_calls_of_several_threads(gpus: FakeGpus) -> None:
    op, inputs, expected = example(DATA)
    wrong: list[str] = []

    def work(gpu: int) -> None:
        for _ in range(20):
            out = Foreign(empty(expected), gpu)
            op(*(Foreign(array, gpu) for array in inputs), out=out)
            if not np.array_equal(out.array, expected):
                wrong.append(f"on {gpu}")

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(line for line in gpus.log if line.startswith("load")) == ["load on 0", "load on 1"]


@pytest.mark.parametrize("case", [DATA, FILTERS], ids=["data", "filters"])
def test_arrays_of_the_packages_own(case: Case, gpus: FakeGpus) -> None:
    from tvmconvgrad.runtime.cuda.memory import GpuArray

    op, inputs, expected = example(case)
    held = gpus.library.fake_allocated()
    result = op(*(GpuArray.of(array, 1) for array in inputs))
    assert isinstance(result, GpuArray)
    assert_same(result.numpy(), expected)
    del result
    assert gpus.library.fake_allocated() == held


def test_run_on_the_command_line(gpus: FakeGpus, capsys: Any) -> None:
    from tvmconvgrad.cli import main

    words = ["run", "ConvolutionBackpropData", "--shapes", "2,5,6,4", "3,3,8,4", "--auto-pad", "same_upper", "--check"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--output-shape", "2,5,6,8", "--target", "cuda", "--repeat", "2"])
    assert not end.value.code
    told = capsys.readouterr().out
    assert "cuda -arch=sm_90" in told
    assert "on the GPU" in told
    assert "right: equal to the definition" in told
