"""csrc/python.c: which tensors are passed on as they are, and which are left to Python."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, floats, layer
from tests.support.cases.case import DTYPES, assert_same
from tests.support.cases.convolution import Array
from tvmconvgrad.runtime import native, python_calls
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.python_calls import NOT_PLAIN


def quick(kernel: Kernel) -> Callable[[Any, Any, Any], int]:
    """The quick way of a kernel without the bias gradient."""
    call = kernel._quick
    assert call is not None
    return lambda first, second, out: call(first, second, out, None)


def misaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    memory[:] = array.view(np.uint8).ravel()
    return memory.view(array.dtype).reshape(array.shape)


class Subclass(np.ndarray[Any, Any]):
    """May do anything."""


class Liar:
    """Its class is not what it says."""

    __class__ = np.ndarray  # type: ignore[assignment]
    dtype = np.dtype(np.float32)


CLOSER_LOOK: dict[str, Callable[[Array], Any]] = {
    "strided": np.asfortranarray,
    "reversed": lambda array: array[::-1],
    "misaligned": misaligned,
    "another shape": lambda array: array[:1],
    "another rank": lambda array: array[None],
    "no axes": lambda array: np.float32(1) + np.zeros(()),
    "another type": lambda array: array.astype(np.float64),
    "two bytes": lambda array: array.astype(np.float16),
    "foreign byte order": lambda array: array.astype(">f4"),
    "a subclass": lambda array: array.view(Subclass),
    "masked": np.ma.masked_array,
    "a list": lambda array: array.tolist(),
    "nothing": lambda array: None,
    "a class": lambda array: np.ndarray,
    "a liar": lambda array: Liar(),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_arrays(dtype: str) -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    out = np.zeros_like(want)
    assert quick(kernel)(*inputs, out) == 0
    assert_same(out, want)
    for array in inputs:
        array.flags.writeable = False
    out[...] = 0
    assert quick(kernel)(*inputs, out) == 0
    assert_same(out, want)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("form", CLOSER_LOOK)
def test_what_needs_a_closer_look(form: str, place: int) -> None:
    kernel, inputs, want = layer()
    tensors: list[Any] = [*inputs, np.full_like(want, 7)]
    tensors[place] = CLOSER_LOOK[form](tensors[place])
    before = [np.array(tensor, copy=True) for tensor in tensors if isinstance(tensor, np.ndarray)]
    assert quick(kernel)(*tensors) == NOT_PLAIN
    after = [tensor for tensor in tensors if isinstance(tensor, np.ndarray)]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_two_bytes_that_are_no_numbers() -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype("bf16"))
    out = np.zeros_like(want)
    for other in (np.dtype("V2"), np.dtype(np.uint16), np.dtype(np.float16)):
        assert quick(kernel)(inputs[0].view(other), inputs[1], out) == NOT_PLAIN


def test_a_result_that_must_not_be_written() -> None:
    kernel, inputs, want = layer()
    out = np.zeros_like(want)
    out.flags.writeable = False
    assert quick(kernel)(*inputs, out) == NOT_PLAIN
    assert not out.any()


@pytest.mark.parametrize("place", range(2))
def test_a_result_in_the_memory_of_an_input(place: int) -> None:
    op = cg.ConvolutionBackpropData(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), output_shape=(1, 6, 6)
    )
    kernel = op.compile((1, 6, 6), (1, 6, 6))
    memory = floats((1, 13, 6))
    inputs = [floats((1, 6, 6), 1), floats((1, 6, 6), 2)]
    inputs[place] = memory[:, 3:9]
    for begin, status in ((0, NOT_PLAIN), (3, NOT_PLAIN), (7, NOT_PLAIN)):
        assert quick(kernel)(*inputs, memory[:, begin : begin + 6]) == status
    inputs[place] = memory[:, :6]
    assert quick(kernel)(*inputs, memory[:, 6:12]) == 0  # side by side
    inputs[place] = memory[:, 6:12]
    assert quick(kernel)(*inputs, memory[:, :6]) == 0


def test_no_reference_is_kept_and_none_is_lost() -> None:
    kernel, inputs, want = layer()
    out = np.zeros_like(want)
    strided = np.asfortranarray(inputs[0])
    watched = [*inputs, out, strided, out.dtype, np.ndarray, "__array_struct__", "dtype", None]
    gc.collect()
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(1000):
        assert quick(kernel)(*inputs, out) == 0
        assert quick(kernel)(strided, inputs[1], out) == NOT_PLAIN
        assert quick(kernel)(inputs[0], None, out) == NOT_PLAIN
    after = [sys.getrefcount(each) for each in watched]
    assert all(abs(one - other) < 100 for one, other in zip(before, after, strict=True))


def test_other_threads_run_meanwhile() -> None:
    op = cg.ConvolutionBackpropData(
        strides=(1, 1), dilations=(1, 1), auto_pad="same_upper", output_shape=(4, 56, 56, 64)
    )
    kernel = op.compile((4, 56, 56, 64), (3, 3, 64, 64))
    first, weights, out = floats((4, 56, 56, 64)), floats((3, 3, 64, 64)), np.empty((4, 56, 56, 64), np.float32)
    turns, stop = [0], threading.Event()

    def turn() -> None:
        while not stop.is_set():
            turns[0] += 1

    other = threading.Thread(target=turn)
    other.start()
    try:
        while not turns[0]:
            time.sleep(0.001)
        before = turns[0]
        assert quick(kernel)(first, weights, out) == 0
        assert turns[0] > before + 100
    finally:
        stop.set()
        other.join()


def test_inputs_are_refused_before_there_is_memory_for_a_result() -> None:
    channels = 2**21  # a result of 16 TiB
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), filter_shape=(1, channels, channels)
    )
    kernel = op.compile((1, 1, channels), (1, 1, channels))
    assert kernel._quick is not None
    right, wrong = np.zeros((1, 1, channels), np.float32), np.zeros((1, 1, 3), np.float32)
    with pytest.raises(ValueError, match="input_forward: shape"):
        kernel(wrong, right)
    with pytest.raises(ValueError, match="output_delta: shape"):
        kernel(right, wrong)
    with pytest.raises(MemoryError):
        kernel(right, right)


def test_a_status_is_raised() -> None:
    kernel, inputs, want = layer()
    failing = Kernel(kernel.problem, kernel.target, kernel.schedule, 0, kernel.function)
    failing.__dict__["_quick"] = lambda *_: 1
    with pytest.raises(MemoryError, match="no memory for the workspace"):
        failing(*inputs, np.zeros_like(want))


def test_a_library_that_cannot_be_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, inputs, want = layer()
    monkeypatch.setattr(kernel.function, "python_method", None)
    older = Kernel(kernel.problem, kernel.target, kernel.schedule, kernel.workspace_bytes, kernel.function)
    assert older._quick is None
    assert_same(older(*inputs, np.zeros_like(want)), want)


def test_the_quick_way_outlives_its_kernel_and_takes_four_objects() -> None:
    kernel, inputs, want = layer()
    call = Kernel(kernel.problem, kernel.target, kernel.schedule, kernel.workspace_bytes, kernel.function)._quick
    assert call is not None
    gc.collect()
    out = np.zeros_like(want)
    assert call(*inputs, out, None) == 0
    assert_same(out, want)
    assert call(*inputs, out) == call(*inputs, out, None, None) == call() == NOT_PLAIN
    assert call.__module__ == "tvmconvgrad.runtime.python_calls"  # of which tracers take a part


def test_the_layout_of_a_problem() -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype("bf16"))
    layout = native.layout_of(kernel.problem)
    assert layout.count == 3
    for place, tensor in enumerate((*inputs, want)):
        assert (layout.code[place], layout.bits[place]) == (4, 16)  # kDLBfloat
        assert tuple(layout.shape[place][: layout.ndim[place]]) == tensor.shape
        assert layout.bytes[place] == tensor.nbytes


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")


def tensors(torch: Any, dtype: str = "f32") -> tuple[Kernel, list[Any], Any]:
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    one, two, result = (torch.from_numpy(array.astype(np.float32)).to(types[dtype]) for array in (*inputs, want))
    kernel(one, two)  # from now on PyTorch is known
    return kernel, [one, two], result


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_tensors_and_parameters(torch: Any, dtype: str) -> None:
    kernel, (first, second), want = tensors(torch, dtype)
    for value in (first, torch.nn.Parameter(first), first.clone().requires_grad_()):
        out = torch.zeros_like(want)
        if value.requires_grad:
            assert quick(kernel)(value, second, out) == NOT_PLAIN
            assert not out.any()
        with torch.set_grad_enabled(not value.requires_grad):
            assert quick(kernel)(value, second, out) == 0
        assert torch.equal(out, want)


def test_tensors_that_need_a_closer_look(torch: Any) -> None:
    kernel, (first, second), want = tensors(torch)
    out = torch.zeros_like(want)
    shape = first.shape
    for value in (
        first.transpose(0, 1).contiguous().transpose(0, 1),
        torch._neg_view(first),
        first.double(),
        first.half(),
        first.to("meta"),
        first.to_sparse(),
        first.to_mkldnn(),
        first[:1],
        first[None],
        torch._efficientzerotensor(shape),
        torch.quantize_per_tensor(first, 1.0, 0, torch.qint8),
        torch.from_numpy(misaligned(first.numpy())),
    ):
        assert quick(kernel)(value, second, out) == NOT_PLAIN
    for result in (out.clone().requires_grad_(), torch.nn.Parameter(out), torch._neg_view(out)):
        assert quick(kernel)(first, second, result) == NOT_PLAIN
    assert not out.any()


def test_tensors_without_memory(torch: Any) -> None:
    kernel, (first, second), want = tensors(torch)
    out = torch.zeros_like(want)
    statuses = []
    torch.func.vmap(lambda one: statuses.append(quick(kernel)(one, second, out)) or one)(first[None])
    torch.func.grad(lambda one: statuses.append(quick(kernel)(one, second, out)) or one.sum())(first)
    with torch._subclasses.FakeTensorMode() as mode:
        statuses.append(quick(kernel)(mode.from_tensor(first), second, out))
    assert statuses == [NOT_PLAIN] * 3


def test_arrays_beside_tensors(torch: Any) -> None:
    kernel, (first, second), want = tensors(torch)
    out = np.zeros(tuple(want.shape), np.float32)
    assert quick(kernel)(first, second.numpy(), out) == 0
    assert_same(out, want.numpy())


def test_a_pytorch_without_the_exchange_api(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, inputs, want = tensors(torch)
    monkeypatch.setattr(python_calls, "_python", python_calls._Python.from_buffer_copy(python_calls._python))

    class Old:
        Tensor = object

    python_calls._python.tensor = python_calls._python.parameter = None
    python_calls.meet_torch(Old)
    older = Kernel(kernel.problem, kernel.target, kernel.schedule, kernel.workspace_bytes, kernel.function)
    assert quick(older)(*inputs, torch.zeros_like(want)) == NOT_PLAIN
    assert torch.equal(older(*inputs), want)
