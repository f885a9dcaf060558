"""PyTorch tensors in and out, of all types and memory formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Convolution, operands

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

CONV = Convolution(2, 1, 5, 6, (7, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
CASES = pytest.mark.parametrize(
    "case",
    [Case("ConvolutionBackpropFilters", CONV, "NCX", "OIX"), Case("ConvolutionBackpropData", CONV, "NCX", "OIX")],
    ids=["filters", "data"],
)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def operator(case: Case) -> Any:
    return getattr(cg, case.operator)(**case.attributes)


def tensors(case: Case, dtype: Any = torch.float32) -> list[Any]:
    canonical = operands(case.convolution, case.result)
    return [torch.from_numpy(canonical[name]).to(dtype) for name in case.inputs]


def expected(case: Case, inputs: list[Any], dtype: Any = torch.float32) -> Any:
    from tests.support.oracles import torch_reference

    given = {name: tensor.detach().double().numpy() for name, tensor in zip(case.inputs, inputs, strict=True)}
    return torch.from_numpy(torch_reference.gradient(case.convolution, case.result, given)).to(dtype)


def spread(tensor: Any) -> Any:
    larger = torch.full([2 * size + 1 for size in tensor.shape], float("nan"), dtype=tensor.dtype)
    view = larger[tuple(slice(1, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


FORMS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda tensor: tensor,
    "channels last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "spread": spread,
    "a parameter": lambda tensor: tensor.clone().requires_grad_(),
    "part of a graph": lambda tensor: tensor.clone().requires_grad_() * 1,
    "an element off": lambda tensor: torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape),
    "a transposed view": lambda tensor: tensor.transpose(0, 2).contiguous().transpose(0, 2),
    "negative by a flag": lambda tensor: torch._neg_view(-tensor),
}


@CASES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_tensors_of_any_form(form: str, dtype: str, case: Case) -> None:
    inputs = [FORMS[form](tensor) for tensor in tensors(case, DTYPES[dtype])]
    watched = any(tensor.requires_grad for tensor in inputs)
    with torch.set_grad_enabled(not watched):
        got = operator(case)(*inputs)
    assert isinstance(got, torch.Tensor)
    assert (got.dtype, got.requires_grad) == (DTYPES[dtype], False)
    assert_same(got.double().numpy(), expected(case, inputs, DTYPES[dtype]).double().numpy())


@CASES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["contiguous", "channels last", "spread", "an element off", "a transposed view"])
def test_out_of_any_form(form: str, dtype: str, case: Case) -> None:
    inputs = tensors(case, DTYPES[dtype])
    want = expected(case, inputs, DTYPES[dtype])
    out = FORMS[form](torch.full(want.shape, 7, dtype=DTYPES[dtype]))
    assert operator(case)(*inputs, out=out) is out
    assert torch.equal(out, want)


@CASES
def test_numpy_and_pytorch_together(case: Case) -> None:
    first, second = tensors(case)
    want = expected(case, [first, second])
    assert isinstance(operator(case)(first, second.numpy()), torch.Tensor)
    assert isinstance(operator(case)(first.numpy(), second), np.ndarray)
    out = np.zeros(want.shape, np.float32)
    assert operator(case)(first, second, out=out) is out
    assert_same(out, want.numpy())


@CASES
def test_a_shape_input_of_pytorch(case: Case) -> None:
    first, second = tensors(case)
    want = expected(case, [first, second])
    shape = torch.tensor(want.shape, dtype=torch.int32)
    assert torch.equal(operator(case)(first, second, shape), want)
    with pytest.raises((TypeError, ValueError), match="shape"):
        operator(case)(first, second, shape.long())


@CASES
def test_tensors_that_no_kernel_takes(case: Case) -> None:
    first, second = tensors(case)
    for bad in (first.double(), first.int(), first.to_sparse(), first.to("meta")):
        with pytest.raises((TypeError, ValueError), match=r"input_forward|output_delta"):
            operator(case)(bad, second)
