"""What else of PyTorch goes on to work, with our kernels beneath it: results are beside those without them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import tvmconvgrad.torch as cgt
from tests.torch.support import all_ours, called

nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.usefixtures("at_once")


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
    )


def images(count: int = 2, size: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def gradients(model: Any, *batches: torch.Tensor, loss: Callable[[Any, torch.Tensor], Any] | None = None) -> list[Any]:
    """Of all parameters, after a backward pass for each batch."""
    model.zero_grad()
    for batch in batches:
        value = (model(batch) ** 2).mean() if loss is None else loss(model, batch)
        value.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def same(compute: Callable[[], Any], **tolerance: float) -> None:
    """What is computed with our kernels is what PyTorch's compute, and all of it is ours."""
    expected = compute()
    with cgt.enabled():
        got = compute()
    assert all_ours(), [step.reason for step in called()]
    torch.testing.assert_close(got, expected, **tolerance)  # type: ignore[arg-type]


def test_gradient_accumulation_and_a_smaller_last_batch() -> None:
    same(lambda: gradients(net(), images(4), images(4, seed=1), images(1, seed=2)))


def test_input_sizes_that_change_every_step() -> None:
    same(lambda: gradients(net(), *(images(2, size) for size in range(5, 12))))


def test_autocast() -> None:
    def loss(model: Any, batch: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(batch).float() ** 2).mean()

    same(lambda: gradients(net(), images(), loss=loss), rtol=0.05, atol=2e-3)
    assert {step.result.dtype for step in called() if step.result} == {torch.bfloat16}


def test_checkpointing() -> None:
    same(
        lambda: gradients(
            net(), images(), loss=lambda model, batch: checkpoint(model, batch, use_reentrant=False).square().mean()
        )
    )


def test_frozen_layers() -> None:
    def compute() -> Any:
        model = net()
        model[0].requires_grad_(False)
        model.zero_grad()
        model(images()).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.requires_grad]

    same(compute)


def test_double_backward() -> None:
    def compute() -> Any:
        x, model = images().requires_grad_(), net()
        (by_x,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
        return torch.autograd.grad(by_x.square().sum(), list(model.parameters()), allow_unused=True)

    same(compute)


@pytest.mark.parametrize("randomness", ["gradients of each sample", "jacobian", "hessian-vector product", "jvp"])
def test_torch_func(randomness: str) -> None:
    def compute() -> Any:
        model = net()
        parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss(values: Any, x: torch.Tensor) -> Any:
            return torch.func.functional_call(model, values, x).square().mean()

        if randomness == "gradients of each sample":
            return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images(3).unsqueeze(1))
        if randomness == "jacobian":
            return torch.func.jacrev(lambda x: loss(parameters, x))(images(1, 5))
        if randomness == "jvp":
            return torch.func.jvp(lambda x: loss(parameters, x), (images(),), (images(seed=1),))
        return torch.func.jvp(torch.func.grad(lambda x: loss(parameters, x)), (images(),), (images(seed=1),))

    same(compute)


def test_torch_jit_trace() -> None:
    same(lambda: torch.jit.trace(net(), images())(images(seed=1)))


def test_torch_export_is_untouched() -> None:
    program = torch.export.export(net(), (images(),))
    with cgt.enabled():
        with_ours = torch.export.export(net(), (images(),))
    assert str(with_ours.graph) == str(program.graph)
    assert "conv2d" in str(program.graph)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile(dynamic: bool) -> None:
    def compute() -> Any:
        torch._dynamo.reset()
        model = net()
        compiled = torch.compile(model, dynamic=dynamic)
        return gradients(model, images(), images(3, seed=1), loss=lambda _, batch: compiled(batch).square().mean())

    same(compute)


def test_operators_have_derivatives_and_are_compiled() -> None:
    numbers = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x, w = images().requires_grad_(), torch.randn(4, 3, 3, 3, requires_grad=True)
    b, grad = torch.randn(4, requires_grad=True), torch.randn(2, 4, 9, 9, requires_grad=True)
    ours, theirs = cgt.convolution(x, w, b, *numbers), torch.ops.aten.convolution(x, w, b, *numbers)
    torch.testing.assert_close(ours, theirs)
    first, expected = (torch.autograd.grad(y, (x, w, b), grad, create_graph=True) for y in (ours, theirs))
    torch.testing.assert_close(first, expected)
    seconds = [
        torch.autograd.grad(sum(one.square().sum() for one in grads), (x, w, grad)) for grads in (first, expected)
    ]
    torch.testing.assert_close(*seconds, rtol=1e-4, atol=1e-3)
    arguments = (grad, x, w, [4], *numbers, [True, True, False])
    checked = torch.library.opcheck(torch.ops.tvmconvgrad.conv_backward.default, (*arguments[:-1], [True] * 3))
    assert set(checked.values()) == {"SUCCESS"}
    got, wanted = cgt.conv_backward(*arguments), torch.ops.aten.convolution_backward(*arguments)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(
    ("cast", "words"), [(torch.Tensor.double, "type float64"), (lambda t: t[:0], "a tensor without elements")]
)
def test_operators_refuse_what_no_kernel_computes(cast: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cgt.convolution(cast(images()), torch.randn(4, 3, 3, 3).to(cast(images()).dtype), None, *NUMBERS)


NUMBERS = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_the_flop_counter_goes_on_counting() -> None:
    counts = []
    for context in (contextlib.nullcontext(), cgt.enabled()):
        with context:
            model = net()
            with FlopCounterMode(display=False) as counter:
                model(images()).sum().backward()
            counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    assert all_ours()


def test_the_profiler_shows_our_kernels() -> None:
    with cgt.enabled(), torch.profiler.profile() as profile:
        net()(images()).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {f"tvmconvgrad::convolution_{part}" for part in ("forward", "data", "weights")} <= names


def test_meta_tensors_and_models_on_them() -> None:
    with cgt.enabled(), torch.device("meta"):
        model = net()
        assert model(torch.empty(2, 3, 9, 9)).shape == (2, 4, 10, 10)
    assert not called()


class Named(torch.Tensor):
    """A subclass that does nothing of its own."""


def test_subclasses_are_pytorchs_and_named() -> None:
    with cgt.enabled():
        x = images().as_subclass(Named)
        torch.conv2d(x, torch.randn(4, 3, 3, 3))
        (note,) = cgt.report().notes
    assert not called()
    assert note.startswith("1 call with a Named")


def test_quantized_models_are_untouched() -> None:
    x = torch.quantize_per_tensor(images(), 0.1, 0, torch.quint8)
    w = torch.quantize_per_tensor(torch.randn(4, 3, 3, 3), 0.1, 0, torch.qint8)
    expected = torch.ao.nn.quantized.functional.conv2d(x, w, torch.zeros(4), scale=0.1, zero_point=0)
    with cgt.enabled():
        got = torch.ao.nn.quantized.functional.conv2d(x, w, torch.zeros(4), scale=0.1, zero_point=0)
    assert torch.equal(got.int_repr(), expected.int_repr())
    assert not called()


def test_threads_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconvgrad.runtime import threads

    monkeypatch.delenv(threads.VARIABLE, raising=False)
    before = torch.get_num_threads()
    with cgt.enabled():
        try:
            torch.set_num_threads(1)
            assert threads.get_num_threads() == 1
            gradients(net(), images())
        finally:
            torch.set_num_threads(before)
    assert all_ours()


def test_optimisers_and_losses_of_some_steps() -> None:
    def compute() -> Any:
        model, losses = net(), []
        optimiser = torch.optim.SGD(model.parameters(), 0.05)
        for step in range(5):
            optimiser.zero_grad()
            loss = F.mse_loss(model(images(4, seed=step)), torch.ones(4, 4, 10, 10))
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return losses, copy.deepcopy(list(model.parameters()))

    same(compute)
