"""PyTorch's and CuPy's tensors on GPUs, by stand-ins for both: their streams, their memory, their copies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.runtime.cuda.tensors import DATA, FILTERS, Foreign, empty, example
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Array
from tests.support.gpu import libraries as fake_libraries
from tests.support.gpu.driver import FakeGpus
from tests.support.gpu.libraries import CupyArray, Tensor, aligned
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.runtime import tensors
from tvmconvgrad.runtime.cuda import tensors as gpu_tensors
from tvmconvgrad.runtime.cuda.kernel import CudaKernel

CASES = pytest.mark.parametrize("case", [DATA, FILTERS], ids=["data", "filters"])


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Stand-ins for both libraries; nothing that was met before is known."""
    importlib.import_module("tvm")  # which looks at the true torch, if there is one
    monkeypatch.setattr(tensors, "_kinds", {np.ndarray: tensors.NUMPY})
    monkeypatch.setattr(gpu_tensors, "_kinds", {})
    monkeypatch.setattr(gpu_tensors, "_quick", {})
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, getattr(fake_libraries, name)())
    yield sys.modules


def launched(gpus: FakeGpus) -> list[str]:
    """The streams that functions were launched on."""
    return [line.split()[-1] for line in gpus.log if line.startswith("run_")]


@CASES
@pytest.mark.parametrize(("kind", "stream"), [(Tensor, "41"), (CupyArray, "61")], ids=["torch", "cupy"])
def test_the_current_stream_and_no_wait(kind: Any, stream: str, case: Case, gpus: FakeGpus) -> None:
    op, inputs, expected = example(case)
    for _ in range(3):  # the later ones by the short way
        result = op(*(kind(array, 1) for array in inputs))
        assert isinstance(result, kind)
        assert_same(result.array, expected)
        assert (result.device.index if kind is Tensor else result.device.id) == 1
    assert set(launched(gpus)) == {stream}
    assert not [line for line in gpus.log if "wait" in line or "synchronize" in line]


@CASES
@pytest.mark.parametrize("kind", [Tensor, CupyArray], ids=["torch", "cupy"])
def test_strided_and_misaligned_tensors_are_copied(kind: Any, case: Case, gpus: FakeGpus) -> None:
    op, inputs, expected = example(case)

    def forms(array: Array) -> list[Array]:
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, np.float32)
        wide[..., ::2] = array
        return [wide[..., ::2], aligned(array, offset=4), np.asfortranarray(array)]

    for form in range(3):
        got = op(*(kind(forms(array)[form]) for array in inputs))
        assert_same(got.array, expected)
        out = kind(forms(np.full_like(expected, np.nan))[form])
        assert op(*map(kind, inputs), out=out) is out
        assert_same(out.array, expected)


def test_a_result_over_an_input_is_computed_aside(gpus: FakeGpus) -> None:
    from tests.support.cases.convolution import Convolution

    one, zero = (1, 1), (0, 0)
    square = Case("ConvolutionBackpropData", Convolution(1, 1, 4, 4, (4, 4), (4, 4), (3, 3), one, one, one, one))
    op, (first, second), expected = example(square)
    tensor = Tensor(first)
    assert op(tensor, Tensor(second), out=tensor) is tensor
    assert_same(tensor.array, expected)
    assert zero


@CASES
def test_libraries_wait_for_each_other(case: Case, gpus: FakeGpus) -> None:
    op, (first, second), expected = example(case)
    result = op(Tensor(first), CupyArray(second))
    assert isinstance(result, Tensor)
    assert_same(result.array, expected)
    before, *runs, after = _steps(gpus)
    assert (before, after) == ("40 waits for 60", "60 waits for 40")
    assert runs and set(runs) == {"run on 40"}


def test_a_foreign_tensor_beside_one_of_pytorch(gpus: FakeGpus) -> None:
    op, (first, second), expected = example(DATA)
    other = Foreign(second)
    assert_same(op(Tensor(first), other).array, expected)
    assert set(other.streams) == {1}
    assert (_steps(gpus)[0], gpus.log[-1]) == ("40 waits for 1", "synchronize 40")


def _steps(gpus: FakeGpus) -> list[str]:
    """Launches, and which stream waits for which other one."""
    found, marked = [], {}
    for line in gpus.log:
        words = line.split()
        if words[0] == "event":
            marked[words[1]] = words[-1]
        elif "waits" in words:
            found.append(f"{words[0]} waits for {marked[words[-1]]}")
        elif words[0].startswith("run_"):
            found.append(f"run on {words[-1]}")
    return found


def test_mixed_devices(gpus: FakeGpus) -> None:
    op, (first, second), expected = example(DATA)
    op(Tensor(first), Tensor(second))
    for one, two, words in [
        (Tensor(first, 1), Tensor(second), "filter: is on cuda:0, and output_delta on cuda:1"),
        (Tensor(first), CupyArray(second, 1), "filter: is on cuda:1, and output_delta on cuda:0"),
        (first, Tensor(second), "filter: is on cuda:0, and output_delta on the CPU"),
        (Tensor(first), second, "filter: is on the CPU, and output_delta on cuda:0"),
    ]:
        with pytest.raises(ValueError, match=f"^{words}, expected one device"):
            op(one, two)
    with pytest.raises(ValueError, match=r"^out: is on cuda:1, and output_delta on cuda:0"):
        op(Tensor(first), Tensor(second), out=Tensor(empty(expected), 1))


@pytest.mark.parametrize("kind", [Tensor, CupyArray, Foreign], ids=["torch", "cupy", "foreign"])
def test_the_workspace_is_of_the_librarys_allocator(kind: Any, gpus: FakeGpus, libraries: Any) -> None:
    op, inputs, expected = example(FILTERS)
    kernel = op.compile(*FILTERS.call.shapes, target="cuda -arch=sm_90")
    function = kernel.function
    (launch,) = function._launches
    # the result goes to the workspace in place of the caller's memory
    arguments = tuple(512 if argument == "out" else argument for argument in launch.arguments)
    function._launches = (Launch(**{**vars(launch), "arguments": arguments}),)
    needs = CudaKernel(**{**vars(kernel), "workspace_bytes": 512 + expected.nbytes})
    out, held = kind(empty(expected)), gpus.library.fake_allocated()
    needs(*map(kind, inputs), out=out)
    assert np.isnan(out.array).all()
    if kind is Tensor:
        (memory,) = (made for made in libraries["torch"].made if made.dtype == np.uint8)
        written = memory.array[512:]
    elif kind is CupyArray:
        written = libraries["cupy"].held[-1][512:]
    else:
        assert "allocate" in " ".join(gpus.log) and gpus.log[-2:] == ["free on 1", "synchronize 1"]
        assert gpus.library.fake_allocated() == held
        return
    assert_same(written.view(np.float32).reshape(expected.shape), expected)


def test_no_memory_for_a_workspace(gpus: FakeGpus) -> None:
    op, inputs, expected = example(DATA)
    kernel = op.compile(*DATA.call.shapes, target="cuda -arch=sm_90")
    needs = CudaKernel(**{**vars(kernel), "workspace_bytes": 1 << 20})
    gpus.fail("cuMemAllocAsync", 2)
    with pytest.raises(MemoryError, match="cuMemAllocAsync"):
        needs(*map(Foreign, inputs), out=Foreign(empty(expected)))
    assert gpus.library.fake_contexts() == 0


def test_the_same_shapes_on_the_cpu_and_on_gpus_in_turn(gpus: FakeGpus) -> None:
    op, (first, second), expected = example(DATA)
    for _ in range(2):
        for place in (None, 0, 1):
            result = op(Tensor(first, place), Tensor(second, place))
            assert_same(result.array, expected)
            assert result.device.index == place
    with pytest.raises(ValueError, match=r"^filter: is on cuda:0, and output_delta on the CPU"):
        op(Tensor(first, None), Tensor(second, 0))
    assert set(launched(gpus)) == {"40", "41"}


def test_autograd_is_told_and_asked(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    op, (first, second), expected = example(DATA)
    for turn in range(3):  # the later ones by the short way
        out = Tensor(empty(expected))
        op(Tensor(first), Tensor(second), out=out)
        assert (out.written, turn) == (1, turn)
        assert_same(out.array, expected)
    for place, name in enumerate(("output_delta", "filter", "out")):
        given = [Tensor(first), Tensor(second), Tensor(empty(expected))]
        given[place].requires_grad = True
        with pytest.raises(ValueError, match=f"{name}: requires grad"):
            op(given[0], given[1], out=given[2])
        assert np.isnan(given[2].array).all()
        with monkeypatch.context() as without:
            without.setattr(sys.modules["torch"], "is_grad_enabled", lambda: False)
            op(given[0], given[1], out=given[2])
        assert_same(given[2].array, expected)
