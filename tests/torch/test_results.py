"""Results and their strides beside PyTorch's own, of random convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import all_ours, called, draw, steps

pytestmark = pytest.mark.usefixtures("at_once")
MASKS = list(itertools.product((True, False), repeat=3))


@pytest.mark.parametrize("seed", range(48))
def test_random_convolutions(seed: int) -> None:
    """Bit for bit, with the strides that PyTorch's own results have."""
    drawn = draw(seed)
    mask = MASKS[seed % len(MASKS)]
    expected = drawn.results(mask)
    with cgt.enabled():
        got = drawn.results(mask)
    assert all_ours(), [step.reason for step in called()]
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours is None) == (theirs is None), drawn
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), drawn
            assert steps(ours) == steps(theirs), drawn


@pytest.mark.parametrize("seed", range(100, 112))
def test_strides_are_those_that_fake_tensors_have(seed: int) -> None:
    """Inductor asserts them."""
    drawn = draw(seed)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (drawn.input, drawn.weight)]
        bias = None if drawn.bias is None else mode.from_tensor(drawn.bias)
        predicted = torch.ops.aten.convolution(*fakes, bias, *drawn.numbers)
        grad = torch.empty_like(predicted)
        sizes, mask = [predicted.shape[1]], [True, True, True]
        by = torch.ops.aten.convolution_backward(grad, *fakes, sizes, *drawn.numbers, mask)
    with cgt.enabled():
        got = drawn.results()
    assert all_ours()
    for ours, fake in zip(got, (predicted, *by), strict=True):
        assert ours is not None
        assert steps(ours) == steps(fake), drawn


def test_a_grad_output_that_stands_for_many_elements() -> None:
    """sum()'s gradient has strides of 0."""
    x, w = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(5, 4, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(torch.conv2d(x, w).sum(), (x, w))
    with cgt.enabled():
        got = torch.autograd.grad(torch.conv2d(x, w).sum(), (x, w))
    assert all_ours()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_in_words(padding: str) -> None:
    x, w = torch.randint(-3, 4, (2, 3, 8, 9)).float(), torch.randint(-3, 4, (4, 3, 4, 2)).float()
    expected = torch.nn.functional.conv2d(x, w, padding=padding)
    with cgt.enabled():
        got = torch.nn.functional.conv2d(x, w, padding=padding)
    assert all_ours()
    assert torch.equal(got, expected)


def test_what_no_kernel_takes_is_pytorchs() -> None:
    x, w = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3)
    with cgt.enabled():
        assert torch.conv2d(x.double(), w.double()).dtype == torch.float64
        assert torch.conv2d(x[:0], w).shape == (0, 5, 4, 4)
        with pytest.raises(RuntimeError, match=r"same type|should be the same"):
            torch.conv2d(x, w.double())
        with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
            torch.conv2d(x, torch.randn(5, 4, 7, 7))
    reasons = {step.reason for step in called()}
    assert {"type float64", "a tensor without elements"} <= reasons


def test_an_input_that_needs_no_gradient() -> None:
    """Of the first layer and of frozen ones one gradient alone is wanted."""
    x, w = torch.randint(-3, 4, (2, 3, 8, 8)).float(), torch.randint(-3, 4, (4, 3, 3, 3)).float().requires_grad_()
    with cgt.enabled():
        torch.conv2d(x, w).sum().backward()
    assert [step.part.value for step in called()] == ["forward", "weights gradient"]
    ours, w.grad = w.grad, None
    torch.conv2d(x, w).sum().backward()
    assert torch.equal(ours, w.grad)  # type: ignore[arg-type]


def test_negative_views_and_copies_on_write() -> None:
    x, w = torch.randint(-3, 4, (2, 3, 8, 8)).float(), torch.randint(-3, 4, (4, 3, 3, 3)).float()
    negative = torch._neg_view(x)
    lazy = torch._lazy_clone(x)
    expected = torch.conv2d(-x, w), torch.conv2d(x, w)
    with cgt.enabled():
        got = torch.conv2d(negative, w), torch.conv2d(lazy, w)
    assert all_ours()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_tensors_that_are_not_aligned() -> None:
    """They are computed, too: a comparison to which ours never came would never end."""
    x, w = torch.randint(-3, 4, (2, 3, 8, 8)).float(), torch.randint(-3, 4, (4, 3, 3, 3)).float()
    memory = bytearray(b"x" + x.numpy().tobytes())
    odd = torch.frombuffer(memory, dtype=torch.float32, offset=1).view(x.shape)
    assert odd.data_ptr() % 4
    expected = torch.conv2d(x, w)
    with cgt.enabled():
        torch.conv2d(x, w)
        (step,) = called()
        assert step.build is not None
        assert step.build.kernel is not None
        out = step.compute(step.build.kernel, [odd, w])
    assert out is not None
    assert torch.equal(out, expected)


ONES, ZEROS = [1, 1], [0, 0]
REFUSED: dict[str, dict[str, Any]] = {
    "stride 0": {"stride": ZEROS},
    "negative padding": {"padding": [-1, 0]},
    "dilation 0": {"dilation": ZEROS},
    "groups 0": {"groups": 0},
    "three paddings": {"padding": [0, 0, 0]},
    "output_padding": {"output_padding": ONES},
    "output_padding, transposed": {"output_padding": ONES, "transposed": True},
    "bias of one": {"bias": torch.ones(1)},
    "bias of two axes": {"bias": torch.ones(4, 1)},
}


@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED)
def test_what_pytorch_refuses_is_refused_in_its_words(changed: dict[str, Any]) -> None:
    named = {"bias": torch.ones(4), "stride": ONES, "padding": ZEROS, "dilation": ONES, "transposed": False}
    named |= {"output_padding": ZEROS, "groups": 1}
    x, w = torch.ones(2, 4, 6, 6), torch.ones(4, 4, 3, 3)

    def forward(**changed: Any) -> Any:
        return torch.ops.aten.convolution(x, w, **(named | changed))

    def backward(**changed: Any) -> Any:
        given = named | {"bias_sizes": [4], "output_mask": [True] * 3} | changed
        del given["bias"]
        return torch.ops.aten.convolution_backward(torch.ones(2, 4, 4, 4), x, w, **given)

    calls = (forward,) if "bias" in changed else (forward, backward)
    expected = [outcome(call, changed) for call in calls]
    assert any(isinstance(value, str) for value in expected)
    with cgt.enabled():
        for call in calls:
            call()
        got = [outcome(call, changed) for call in calls]
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, str):
            assert ours == theirs
        else:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shapes", [((2, 4, 6, 6), ()), ((2, 4, 6, 6), (4,)), ((4,), (4, 4, 3, 3)), ((), (4, 4))], ids=str
)
def test_too_few_axes_are_refused_in_its_words(shapes: tuple[tuple[int, ...], ...], transposed: bool) -> None:
    x, w = map(torch.ones, shapes)
    numbers = ONES, ZEROS, ONES, transposed, ZEROS, 1

    def forward() -> Any:
        return torch.ops.aten.convolution(x, w, None, *numbers)

    def backward() -> Any:
        return torch.ops.aten.convolution_backward(torch.ones(2, 4, 4, 4), x, w, [4], *numbers, [True] * 3)

    expected = [outcome(call, {}) for call in (forward, backward)]
    assert all(isinstance(words, str) for words in expected)
    with cgt.enabled():
        assert [outcome(call, {}) for call in (forward, backward)] == expected


def test_onednn_may_be_switched_off_between_calls() -> None:
    """The memory format of PyTorch's results may change then, and ours follows."""
    x = torch.randn(2, 4, 7, 7, 7).to(memory_format=torch.channels_last_3d)
    w = torch.randn(4, 4, 2, 2, 2)
    with torch.backends.mkldnn.flags(enabled=False):
        expected = torch.conv3d(x, w)
    with cgt.enabled():
        assert steps(torch.conv3d(x, w)) != steps(expected)
        with torch.backends.mkldnn.flags(enabled=False):
            assert steps(torch.conv3d(x, w)) == steps(expected)
    assert all_ours()


def outcome(call: Callable[..., Any], changed: dict[str, Any]) -> Any:
    """What a call returns, or the words of its error."""
    try:
        return call(**changed)
    except RuntimeError as error:
        return str(error)


STRANGE_BIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": lambda bias: bias.repeat_interleave(2)[::2],
    "expanded": lambda bias: bias[:1].expand(4),
    "unaligned": lambda bias: torch.frombuffer(bytearray(b"x" + bias.numpy().tobytes()), dtype=bias.dtype, offset=1),
    "negative": torch._neg_view,
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", STRANGE_BIASES)
def test_a_bias_that_lies_strangely(kind: str, transposed: bool) -> None:
    conv = torch.conv_transpose2d if transposed else torch.conv2d
    x, w = torch.randint(-3, 4, (2, 4, 8, 8)).float(), torch.randint(-3, 4, (4, 4, 3, 3)).float()
    bias = STRANGE_BIASES[kind](torch.tensor([1.0, -2, 3, -4]))
    expected = conv(x, w, bias)
    with cgt.enabled():
        got = conv(x, w, bias)
    assert all_ours()
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bias_is_added_in_the_same_pass(dtype: torch.dtype) -> None:
    """So a sum that 16 bits do not hold is rounded once, with the bias."""
    size = 2 / torch.finfo(dtype).eps  # the least number that has no half beside it
    x, w = torch.tensor([[[[size], [1]]]], dtype=dtype), torch.tensor([[[[1], [1]]]], dtype=dtype)
    bias = torch.tensor([1], dtype=dtype)
    expected = torch.full((1, 1, 1, 1), size + 2, dtype=dtype)
    with cgt.enabled(), torch.profiler.profile() as profile:
        got = torch.conv2d(x, w, bias)
    assert torch.equal(got, expected)
    names = {event.name for event in profile.events()}
    assert "tvmconvgrad::convolution_forward" in names
    assert not any("add" in name for name in names)


def test_a_bias_of_another_type_is_pytorchs() -> None:
    x, w, bias = torch.ones(1, 2, 3, 3), torch.ones(4, 2, 3, 3), torch.ones(4, dtype=torch.float64)
    numbers = ONES, ZEROS, ONES, False, ZEROS, 1, False, False, False, False
    expected = torch.ops.aten._convolution(x, w, bias, *numbers)
    with cgt.enabled():
        got = torch.ops.aten._convolution(x, w, bias, *numbers)
    assert torch.equal(got, expected)
    assert [step.reason for step in called()] == ["a bias of another type than the input's"]
