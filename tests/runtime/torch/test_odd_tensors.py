"""PyTorch's tensors without plain memory, or with memory that others have, too, on every way of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS
from tests.support.cases.convolution import Array

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.runtime.torch.ways import NAMES, WAYS, Call, calls, tensors  # noqa: E402

__all__ = ["calls"]


class Overriding(torch.Tensor):
    """Does something of its own."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return 7


class Plain(torch.Tensor):
    """Does nothing of its own."""


def freed(tensor: Any, size: int = 0) -> Any:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(size)
    return tensor


def freed_view(tensor: Any) -> Any:
    memory = torch.zeros(2 * tensor.numel())
    view = memory[tensor.numel() :].view(tensor.shape)
    memory.untyped_storage().resize_(4)
    return view


ODD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "freed": (freed, "its elements need .* bytes of a storage of 0"),
    "made smaller": (lambda tensor: freed(tensor, 4), "its elements need .* bytes of a storage of 4"),
    "a view of what was made smaller": (freed_view, "its elements need .* bytes of a storage of 4"),
    "zeros without memory": (lambda tensor: torch._efficientzerotensor(tensor.shape), "without memory of its own"),
    "functional": (lambda tensor: torch._to_functional_tensor(tensor), "without memory of its own"),
    "nested": (lambda tensor: torch.nested.nested_tensor(list(tensor)), "a nested tensor has no single shape"),
    "nested and jagged": (lambda tensor: torch.nested.nested_tensor(list(tensor), layout=torch.jagged), ""),
    "on another device": (lambda tensor: tensor.to("meta"), "is on device meta"),
    "sparse": (lambda tensor: tensor.to_sparse(), "layout torch.sparse_coo"),
    "sparse by rows": (lambda tensor: tensor.flatten(1).to_sparse_csr(), "layout torch.sparse_csr"),
    "of oneDNN's layout": (lambda tensor: tensor.to_mkldnn(), "layout torch._mkldnn"),
    "overriding": (lambda tensor: tensor.as_subclass(Overriding), "is a Overriding"),
    "not there yet": (lambda tensor: torch.nn.UninitializedParameter(), "is a UninitializedParameter"),
    "complex, conjugate": (lambda tensor: tensor.to(torch.complex64).conj(), "complex64"),
}


@WAYS
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_memory(odd: str, place: int, way: str, calls: dict[str, Call]) -> None:
    given = list(tensors())
    make, words = ODD[odd]
    given[place] = make(given[place])
    name = (*NAMES, "out")[place]
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: .*{words}"):
        calls[way](given[0], given[1], out=given[2] if place == 2 else None)


@WAYS
def test_tensors_that_are_plain_after_all(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    lazy = torch._lazy_clone(first.clone())  # of memory that is PyTorch's
    assert torch.equal(calls[way](lazy, second), want)
    assert torch.equal(calls[way](first.as_subclass(Plain), second), want)
    assert torch.equal(calls[way](first.share_memory_(), second), want)
    assert torch.equal(calls[way](torch._neg_view(-first), second), want)
    assert torch.equal(calls[way](first.to(torch.complex64).conj().real, second), want)
    before = torch.full(want.shape, 7.0)
    out = torch._lazy_clone(before)
    calls[way](first, second, out=out)
    assert torch.equal(out, want)
    assert bool((before == 7).all())  # which shared memory with `out` until now


@WAYS
def test_results_in_shared_places(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    memory = torch.zeros(want.numel() + 8)
    rows = want.shape[:-1].numel()
    for strides, ok in (
        ((0,) * 4, False),
        ((36, 12, 4, 1), True),
        ((36, 12, 3, 1), False),
        ((1, 1, 1, 1), False),
        ((12, 36, 4, 1), True),
    ):
        out = memory.as_strided(want.shape, strides)
        memory.zero_()
        places = {sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(*want.shape)}
        assert ok == (len(places) == want.numel())
        if ok:
            assert torch.equal(calls[way](first, second, out=out), calls[way](first, second)), rows
        else:
            with pytest.raises(ValueError, match=r"^out: several elements share one place"):
                calls[way](first, second, out=out)
            assert not memory.any()


def test_a_shape_without_memory() -> None:
    first, second, want = tensors()
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    shape = torch.tensor(tuple(want.shape), dtype=torch.int32)
    assert torch.equal(op(first, second, shape), want)
    for bad in (freed(shape), freed(shape, 4), shape.to("meta"), torch._efficientzerotensor((4,), dtype=torch.int32)):
        with pytest.raises((TypeError, ValueError), match=r"^filter_shape: "):
            op(first, second, bad)


def test_arrays_and_tensors_on_one_memory() -> None:
    """An array that is a tensor's memory has no version: what is written through it is not seen, as in PyTorch."""
    first, second, want = tensors()
    out: Array = np.zeros(want.shape, np.float32)
    assert getattr(cg, FILTERS.operator)(**FILTERS.attributes)(first, second, out=out) is out
    assert np.array_equal(out, want.numpy())
