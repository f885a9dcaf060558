"""PyTorch's tensors: the quick way and the careful one, autograd, and results of another library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.layers import FILTERS, NEW_NAMES, WIDE_FILTERS, layer
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Array

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def to_torch(array: Array, dtype: str = "f32") -> Any:
    return torch.from_numpy(array.astype(np.float32)).to(TYPES[dtype])


def torch_layer(case: Case = FILTERS) -> tuple[Any, list[Any], Any]:
    kernel, inputs, want = layer(case)
    return kernel, [to_torch(array, case.dtype) for array in inputs], to_torch(want, case.dtype)


@pytest.mark.parametrize("case", [FILTERS, NEW_NAMES], ids=["old names", "new names"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda tensor: tensor.to("meta"), "is on device meta, expected the CPU"),
        (lambda tensor: tensor.to_sparse(), "a tensor of layout torch.sparse_coo has no dense memory"),
        (lambda tensor: tensor.to_mkldnn(), "a tensor of layout torch._mkldnn has no dense memory"),
        (lambda tensor: tensor.double(), "dtype torch.float64 is not supported"),
        (lambda tensor: tensor.to(torch.complex64), "dtype torch.complex64 is not supported"),
        (lambda tensor: torch.quantize_per_tensor(tensor, 1.0, 0, torch.qint8), "is quantized"),
        (lambda tensor: tensor.to(torch.bfloat16), "dtype bf16 does not fit, this kernel is compiled for f32"),
        (lambda tensor: tensor[:1], "does not fit"),
    ],
)
def test_inputs_that_are_refused(bad: Any, words: str, case: Case) -> None:
    kernel, inputs, _ = torch_layer(case)
    for which, name in enumerate(kernel.problem.input_names):
        given = [bad(tensor) if i == which else tensor for i, tensor in enumerate(inputs)]
        with pytest.raises((TypeError, ValueError)) as error:
            kernel(*given)
        assert str(error.value).startswith(f"{name}: ")
        assert words in str(error.value)


def test_tensors_of_transformations() -> None:
    kernel, (first, second), _ = torch_layer()
    with pytest.raises(TypeError, match=r"input_forward: .* without memory of its own"):
        torch.func.vmap(lambda one: kernel(one, second))(first[None])
    with pytest.raises(TypeError, match=r"input_forward: .* without memory of its own"):
        torch.func.grad(lambda one: kernel(one, second).sum())(first)


def test_fake_tensors() -> None:
    kernel, (first, second), _ = torch_layer()
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(TypeError, match="input_forward: "):
        kernel(mode.from_tensor(first), second)


def test_the_result_is_on_the_cpu_whatever_the_default() -> None:
    kernel, inputs, want = torch_layer()
    with torch.device("meta"):
        assert torch.equal(kernel(*inputs), want)


def test_results_that_autograd_watches() -> None:
    kernel, inputs, want = torch_layer()
    leaf = torch.zeros_like(want).requires_grad_()
    for out in (leaf, leaf * 1):
        with pytest.raises(ValueError, match="out: requires grad"):
            kernel(*inputs, out=out)
        assert not out.detach().any()
    with torch.no_grad():
        assert kernel(*inputs, out=leaf) is leaf
    assert torch.equal(leaf.detach(), want)


def test_results_of_other_forms() -> None:
    kernel, inputs, want = torch_layer()
    negative = torch._neg_view(torch.zeros_like(want))
    spread = torch.zeros([2 * size for size in want.shape])[tuple(slice(None, None, 2) for _ in want.shape)]
    imaginary = torch.zeros(want.shape, dtype=torch.complex64).conj().imag
    for out in (negative, spread, imaginary):
        assert kernel(*inputs, out=out) is out
        assert torch.equal(out, want)
    with pytest.raises(ValueError, match="out: several elements share one place"):
        kernel(*inputs, out=torch.zeros(1).expand(want.shape))
    with pytest.raises(ValueError, match="out: shape"):
        kernel(*inputs, out=want[..., :-1].clone())
    with pytest.raises(ValueError, match="out: dtype"):
        kernel(*inputs, out=want.half())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_on_top_of_an_input(dtype: str) -> None:
    kernel, inputs, want = torch_layer(FILTERS.with_dtype(dtype))
    memory = torch.zeros(inputs[0].numel() + want.numel(), dtype=TYPES[dtype])
    for shift in (0, 3, inputs[0].numel() - 1, inputs[0].numel()):
        place = memory[: inputs[0].numel()].view(inputs[0].shape).copy_(inputs[0])
        out = memory[shift : shift + want.numel()].view(want.shape)
        kernel(place, inputs[1], out)
        assert torch.equal(out, want)
    array = memory.view(torch.int16 if dtype == "bf16" else TYPES[dtype]).numpy().view(DTYPES[dtype])
    place = memory[: inputs[0].numel()].view(inputs[0].shape).copy_(inputs[0])
    shared = array[5 : 5 + want.numel()].reshape(want.shape)
    kernel(place, inputs[1], shared)
    assert_same(shared.astype(np.float64), want.double().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_libraries_in_one_call(dtype: str) -> None:
    kernel, inputs, want = layer(WIDE_FILTERS.with_dtype(dtype))
    tensors = [to_torch(array, dtype) for array in inputs]
    assert_same(kernel(inputs[0], tensors[1]), want)
    assert torch.equal(kernel(tensors[0], inputs[1]), to_torch(want, dtype))
    out = torch.zeros(want.shape, dtype=TYPES[dtype])
    assert kernel(*inputs, out=out) is out
    assert torch.equal(out, to_torch(want, dtype))
    array = np.zeros_like(want)
    assert kernel(*tensors, out=array) is array
    assert_same(array, want)
