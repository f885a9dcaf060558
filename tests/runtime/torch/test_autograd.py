"""PyTorch's autograd: nothing is lost without a word, on every way of a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
from torch.autograd import forward_ad  # noqa: E402

from tests.runtime.torch.ways import DENSE_OR_NOT, NAMES, WAYS, Call, calls, tensors  # noqa: E402

__all__ = ["calls"]


@WAYS
@pytest.mark.parametrize("form", DENSE_OR_NOT)
def test_backward_notices_that_a_result_was_written_over_what_it_kept(
    form: str, way: str, calls: dict[str, Call]
) -> None:
    first, second, want = tensors()
    for write in (lambda out: calls[way](first, second, out=out), lambda out: torch.add(out, 1, out=out)):
        weights, out = torch.ones(want.shape, requires_grad=True), DENSE_OR_NOT[form](want)
        loss = (weights * out).sum()
        write(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@WAYS
def test_views_of_a_result_share_its_version(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    base = torch.zeros(2, *want.shape)
    view, detached = base[0], base.detach()
    versions = [each._version for each in (base, view, detached)]
    calls[way](first, second, out=base[1])
    assert all(each._version > before for each, before in zip((base, view, detached), versions, strict=True))
    assert first._version == second._version == 0


@WAYS
@pytest.mark.parametrize("place", range(2))
def test_inputs_that_require_grad(place: int, way: str, calls: dict[str, Call]) -> None:
    plain = tensors()
    want = calls[way](*plain[:2])
    for watched in (
        plain[place].clone().requires_grad_(),
        torch.nn.Parameter(plain[place]),
        plain[place].clone().requires_grad_() * 1,
    ):
        given = [watched if i == place else each for i, each in enumerate(plain[:2])]
        for out in (None, torch.zeros(want.shape), np.zeros(want.shape, np.float32)):
            with pytest.raises(
                ValueError, match=rf"^{NAMES[place]}: requires grad.*{NAMES[place]}\.detach\(\).*no_grad"
            ):
                calls[way](*given, out=out)
            assert out is None or not out.any()
        with torch.no_grad():
            assert torch.equal(calls[way](*given), want)
        with torch.inference_mode():
            assert torch.equal(calls[way](*given), want)
        given[place] = watched.detach()
        assert torch.equal(calls[way](*given), want)


@WAYS
def test_inside_of_a_backward(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            ctx.save_for_backward(given)
            return calls[way](given, second)

        @staticmethod
        def backward(ctx: Any, delta: Any) -> Any:
            (given,) = ctx.saved_tensors
            assert given.requires_grad
            assert torch.equal(calls[way](given, second), want)
            return torch.ones_like(given)

    leaf = first.clone().requires_grad_()
    Gradient.apply(leaf).sum().backward()
    assert bool((leaf.grad == 1).all())


@WAYS
def test_results_that_require_grad(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    leaf = torch.zeros(want.shape).requires_grad_()
    with torch.no_grad():
        view = leaf.view(want.shape)
    for out in (leaf, leaf * 1, view, (leaf * 1).view(want.shape), torch.nn.Parameter(torch.zeros(want.shape))):
        with pytest.raises(RuntimeError, match="requires grad"):
            torch.add(want, 1, out=out)
        with pytest.raises(ValueError, match=r"^out: requires grad"):
            calls[way](first, second, out=out)
        assert not out.detach().any()
    before = leaf._version
    with torch.no_grad():
        calls[way](first, second, out=leaf)
    assert leaf._version > before


@WAYS
def test_inference_tensors(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    with torch.inference_mode():
        inputs, out = [first.clone(), second.clone()], torch.zeros(want.shape)
        assert out.is_inference()
        assert torch.equal(calls[way](*inputs), want)
        assert calls[way](*inputs, out=out) is out
        assert torch.equal(out, want)
        normal = calls[way](first, second).clone()
        out.zero_()
    assert torch.equal(normal, want)
    assert torch.equal(calls[way](*inputs), want)
    with pytest.raises(ValueError, match=r"^out: is an inference tensor"):
        calls[way](first, second, out=out)
    assert not out.any()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch.add(want, 1, out=out)


@WAYS
def test_forward_mode(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(first, torch.ones_like(first))
        with pytest.raises(ValueError, match=r"^input_forward: has a forward-mode tangent"):
            calls[way](dual, second)
        with pytest.raises(ValueError, match=r"^out: has a forward-mode tangent"):
            calls[way](first, second, out=forward_ad.make_dual(torch.zeros(want.shape), want))
        assert torch.equal(calls[way](forward_ad.unpack_dual(dual).primal, second), want)
        assert torch.equal(calls[way](first, second), want)
    with pytest.raises(TypeError, match=r"^input_forward: .* without memory of its own"):
        torch.func.jvp(lambda one: calls[way](one, second), (first,), (first,))
