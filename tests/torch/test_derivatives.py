"""The derivatives of the operators `convolution` and `conv_backward`, beside those of PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import tvmconvgrad.torch as cgt

func = torch.func
X, W, B, DY = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in (
    (2, 4, 6, 6), (5, 4, 3, 3), (5,), (2, 5, 4, 4)
))  # fmt: skip
NUMBERS = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
Operator = Callable[..., Any]
ALL = [True, True, True]


def dual_numbers(conv: Operator, back: Operator) -> Any:
    with dual_level():
        x, w, b, dy = (make_dual(each, each + 1) for each in (X, W, B, DY))
        results = conv(x, w, b, *NUMBERS), conv(X, w, B, *NUMBERS), *back(dy, x, w, [5], *NUMBERS, ALL)
        return [tuple(unpack_dual(each)) for each in results]


def twice(conv: Operator, back: Operator) -> Any:
    leaves = [each.clone().requires_grad_() for each in (X, W, B)]
    first = torch.autograd.grad(conv(*leaves, *NUMBERS).square().sum(), leaves, create_graph=True)
    loss = sum(each.square().sum() for each in first)
    return first, torch.autograd.grad(loss, leaves)  # type: ignore[arg-type]


def cubed(conv: Operator) -> Callable[[Any], Any]:
    return func.grad(lambda w: (conv(X, w, B, *NUMBERS) ** 3).sum())


WAYS: dict[str, Callable[[Operator, Operator], Any]] = {
    "tangents of all": lambda conv, back: func.jvp(lambda *each: conv(*each, *NUMBERS), (X, W, B), (X + 1, W - 1, B)),
    "a tangent of the bias": lambda conv, back: func.jvp(lambda b: conv(X, W, b, *NUMBERS), (B,), (B + 1,)),
    "tangents of the gradients": lambda conv, back: func.jvp(
        lambda *each: back(*each, [5], *NUMBERS, ALL), (DY, X, W), (DY + 1, X - 1, W)
    ),
    "of one gradient": lambda conv, back: func.jvp(
        lambda *each: back(*each, [5], *NUMBERS, [False, True, False])[1], (DY, X, W), (DY + 1, X - 1, W)
    ),
    "dual numbers": dual_numbers,
    "grad": lambda conv, back: cubed(conv)(W),
    "grad of grad": lambda conv, back: func.grad(lambda w: cubed(conv)(w).square().sum())(W),
    "hessian-vector product": lambda conv, back: func.jvp(cubed(conv), (W,), (W + 1,)),
    "gradients of each sample": lambda conv, back: func.vmap(
        func.grad(lambda w, x: conv(x[None], w, B, *NUMBERS).square().sum()), (None, 0)
    )(W, X),
    "jacobian": lambda conv, back: func.jacrev(lambda w: conv(X, w, B, *NUMBERS).sum((0, 2, 3)))(W),
    "twice": twice,
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_derivatives_are_pytorchs(way: Callable[[Operator, Operator], Any]) -> None:
    expected = way(torch.ops.aten.convolution, torch.ops.aten.convolution_backward)
    got = way(cgt.convolution, cgt.conv_backward)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_the_operators_have_no_silent_lack_of_a_derivative() -> None:
    """Called by their names in `torch.ops`, past our functions, they have tangents or raise."""
    with dual_level():
        got = unpack_dual(torch.ops.tvmconvgrad.convolution(X, make_dual(W, W), None, *NUMBERS))
    torch.testing.assert_close(got.tangent, torch.conv2d(X, W), rtol=1e-3, atol=1e-3)
    with pytest.raises(NotImplementedError):
        func.jvp(lambda w: torch.ops.tvmconvgrad.convolution(X, w, None, *NUMBERS), (W,), (W,))


def test_compiled_operators_have_derivatives() -> None:
    def step(conv: Operator) -> Any:
        torch._dynamo.reset()
        leaves = [each.clone().requires_grad_() for each in (X, W, B)]
        compiled = torch.compile(lambda *each: conv(*each, *NUMBERS).relu(), fullgraph=True, backend="aot_eager")
        return torch.autograd.grad(compiled(*leaves).square().sum(), leaves)

    torch.testing.assert_close(step(cgt.convolution), step(torch.ops.aten.convolution), rtol=1e-3, atol=1e-3)
