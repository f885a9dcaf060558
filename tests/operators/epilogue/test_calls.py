"""Calls with `accumulate`, `bias_delta`, `bias` and `result_dtype`: on whatever memory; what is refused, in words."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.convolution import Array

X, DY, FILTER = (2, 6, 7, 4), (2, 6, 7, 8), (3, 3, 4, 8)


def operator(**attributes: Any) -> cg.ConvolutionBackpropFilters:
    given = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "filter_shape": FILTER}
    return cg.ConvolutionBackpropFilters(**given | attributes)


def forward(**attributes: Any) -> cg.ConvTransposeBackpropData:
    """The forward of the same convolution, with the same filter."""
    given = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "filter_format": "XOI"}
    return cg.ConvTransposeBackpropData(**given | attributes)


def small(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


@pytest.fixture(name="tensors")
def _tensors() -> tuple[Array, Array]:
    return small(X, 1), small(DY, 2)


def test_a_call_adds_and_gives_the_bias(tensors: tuple[Array, Array]) -> None:
    op, (x, dy) = operator(), tensors
    once, out, bias = op(x, dy), small(FILTER, 3), small((8,), 4)
    before, bias_before = out.copy(), bias.copy()
    for times in (1, 2):
        assert op(x, dy, out=out, accumulate=True, bias_delta=bias) is out
        assert np.array_equal(out, before + times * once)
        assert np.array_equal(bias, bias_before + times * dy.sum((0, 1, 2)))
    assert np.array_equal(op(x, dy, bias_delta=bias), once)  # no longer adds
    assert np.array_equal(bias, dy.sum((0, 1, 2)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_of_16_bits_in_f32(dtype: Any) -> None:
    x, dy = small(X, 1, dtype) * dtype(129), small(DY, 2, dtype)
    exact = operator()(x.astype(np.float32), dy.astype(np.float32))
    found = operator()(x, dy, result_dtype="f32")
    assert found.dtype == np.float32
    assert np.array_equal(found, exact)
    assert not np.array_equal(operator()(x, dy).astype(np.float32), exact)  # 16 bits do not hold them


def test_memory_that_a_kernel_cannot_write(tensors: tuple[Array, Array]) -> None:
    op, (x, dy) = operator(), tensors
    once, wide, biases = op(x, dy), np.ones((3, 3, 4, 16), np.float32), np.ones(16, np.float32)
    op(x, dy, out=wide[..., ::2], accumulate=True, bias_delta=biases[::2])
    assert np.array_equal(wide[..., ::2], 1 + once)
    assert np.all(wide[..., 1::2] == 1)
    assert np.array_equal(biases[::2], 1 + dy.sum((0, 1, 2)))
    assert np.all(biases[1::2] == 1)
    memory = np.concatenate([x.ravel(), np.zeros(999, np.float32)])
    shared = memory[100 : 100 + once.size].reshape(FILTER)
    before = shared.copy()
    op(memory[: x.size].reshape(X), dy, out=shared, accumulate=True)
    assert np.array_equal(shared, before + once)


def test_tensors_of_pytorch(tensors: tuple[Array, Array]) -> None:
    torch = pytest.importorskip("torch")
    x, dy = map(torch.from_numpy, tensors)
    out, bias = torch.ones(FILTER), torch.ones(8)
    versions = out._version, bias._version
    operator()(x, dy, out=out, accumulate=True, bias_delta=bias)
    assert torch.equal(out, 1 + operator()(x, dy))
    assert torch.equal(bias, 1 + dy.sum((0, 1, 2)))
    assert out._version > versions[0]
    assert bias._version > versions[1]
    with pytest.raises(ValueError, match="bias_delta: requires grad"):
        operator()(x, dy, bias_delta=torch.ones(8, requires_grad=True))


def test_without_elements() -> None:
    x, dy = np.zeros((0, *X[1:]), np.float32), np.zeros((0, *DY[1:]), np.float32)
    out, bias = np.ones(FILTER, np.float32), np.ones(8, np.float32)
    operator()(x, dy, out=out, accumulate=True, bias_delta=bias)
    assert np.all(out == 1)
    assert np.all(bias == 1)
    operator()(x, dy, out=out, bias_delta=bias)
    assert not out.any()
    assert not bias.any()
    op, dy = operator(filter_shape=(3, 3, 0, 8)), small(DY, 2)
    op(np.zeros((2, 6, 7, 0), np.float32), dy, bias_delta=bias)
    assert np.array_equal(bias, dy.sum((0, 1, 2)))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (ValueError, {"accumulate": True}, "accumulate: there is nothing to add to, expected out="),
        (TypeError, {"accumulate": 1}, "accumulate: got 1 of type int, expected a bool"),
        (ValueError, {"result_dtype": "f16"}, "result_dtype: f16 is not supported for inputs of f32"),
        (ValueError, {"result_dtype": "f64"}, "result_dtype: 'f64' is not supported, expected f32, f16 or bf16"),
        (ValueError, {"bias_delta": np.zeros(7, np.float32)}, r"bias_delta: shape \(7,\) does not fit, .* for \(8,\)"),
        (
            ValueError,
            {"bias": np.zeros(8, np.float32)},
            "bias: a filter's gradient has none, expected an operator whose",
        ),
        (ValueError, {"bias_delta": np.zeros(8, np.float16)}, "bias_delta: dtype f16 does not fit, .* for f32"),
        (TypeError, {"bias_delta": True}, "bias_delta: True of type bool is no tensor"),
        (TypeError, {"accumulat": True}, "has no input 'accumulat' .did you mean 'accumulate'"),
    ],
    ids=str,
)
def test_what_is_refused(
    tensors: tuple[Array, Array], kind: type[Exception], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(kind, match=words):
        operator()(*tensors, **options)


def test_a_bias_is_added() -> None:
    op, x, w, bias = forward(), small(X, 1), small(FILTER, 2), np.arange(8, dtype=np.float32)
    plain = op(x, w)
    unaligned = np.frombuffer(b"x" + bias.tobytes(), np.float32, offset=1)
    for added in (bias, np.repeat(bias, 2)[::2], bias[::-1].copy()[::-1], unaligned):
        assert np.array_equal(op(x, w, bias=added), plain + bias)
    assert np.array_equal(op(x, w), plain)
    out = np.zeros(DY, np.float32)
    out[0, 0, 0] = bias
    assert np.array_equal(op(x, w, out=out, bias=out[0, 0, 0]), plain + bias)  # read before it is written


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_bias_and_results_of_16_bits_in_f32(dtype: Any) -> None:
    x, w, bias = small(X, 1, dtype) * dtype(129), small(FILTER, 2, dtype), np.arange(8).astype(dtype)
    exact = forward()(*(tensor.astype(np.float32) for tensor in (x, w))) + bias.astype(np.float32)
    assert np.array_equal(forward()(x, w, bias=bias, result_dtype="f32"), exact)
    assert np.array_equal(forward()(x, w, bias=bias), exact.astype(dtype))


def test_a_bias_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, w, bias = (torch.from_numpy(small(shape, 1)) for shape in (X, FILTER, (8,)))
    version, out = bias._version, torch.empty(DY)
    forward()(x, w, out=out, bias=bias)
    assert torch.equal(out, forward()(x, w) + bias)
    assert bias._version == version
    with pytest.raises(ValueError, match="bias: requires grad"):
        forward()(x, w, bias=bias.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(forward()(x, w, bias=bias.clone().requires_grad_()), out)


def test_a_bias_without_products() -> None:
    """Elements that no product meets are the bias: all of a sum over no channels, and those between strides."""
    bias = np.arange(1, 9, dtype=np.float32)
    empty = forward()(np.zeros((2, 6, 7, 0), np.float32), np.zeros((3, 3, 0, 8), np.float32), bias=bias)
    assert np.array_equal(empty, np.broadcast_to(bias, DY))
    assert forward()(np.zeros((0, 6, 7, 4), np.float32), small(FILTER, 1), bias=bias).shape == (0, *DY[1:])
    spread = cg.ConvolutionBackpropData(strides=(3, 3), dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0))
    y, w = small((1, 2, 2, 3), 1), small((1, 1, 8, 3), 2)
    expected = np.zeros((1, 4, 4, 8), np.float32) + bias
    expected[:, ::3, ::3] += y @ w[0, 0].T
    assert np.array_equal(spread(y, w, bias=bias), expected)


def test_what_is_refused_with_a_bias() -> None:
    x, w, bias, out = small(X, 1), small(FILTER, 2), np.ones(8, np.float32), np.zeros(DY, np.float32)
    refused: list[tuple[type[Exception], dict[str, Any], str]] = [
        (ValueError, {"bias": bias, "accumulate": True, "out": out}, "bias: not with accumulate=True"),
        (ValueError, {"bias": bias, "bias_delta": np.ones(4, np.float32)}, "bias: a forward adds it, .* bias_delta"),
        (ValueError, {"bias": bias[:4]}, r"bias: shape \(4,\) does not fit, .* for \(8,\)"),
        (ValueError, {"bias": bias.astype(np.float16)}, "bias: dtype f16 does not fit, .* for f32"),
        (TypeError, {"bias": True}, "bias: True of type bool is no tensor"),
    ]
    for kind, options, words in refused:
        with pytest.raises(kind, match=words):
            forward()(x, w, **options)
    plain, adding = (forward().compile(X, FILTER, bias=added) for added in (False, True))
    with pytest.raises(ValueError, match="bias: this kernel has no such option"):
        plain(x, w, bias=bias)
    with pytest.raises(ValueError, match="bias: missing; this kernel is compiled with bias=True"):
        adding(x, w)
    with pytest.raises(TypeError, match="bias: got 1 of type int, expected a bool"):
        forward().compile(X, FILTER, bias=1)
    with pytest.raises(ValueError, match="bias: kernels for GPUs do not have it"):
        forward().compile(X, FILTER, bias=True, target="cuda -arch=sm_90")
    assert "bias true" in str(adding)


@pytest.mark.parametrize("other", ["input_forward", "output_delta", "out"])
def test_a_bias_that_shares_memory(tensors: tuple[Array, Array], other: str) -> None:
    x, dy = tensors
    out = np.zeros(FILTER, np.float32)
    shared = {"input_forward": x, "output_delta": dy, "out": out}[other].ravel()[:8]
    with pytest.raises(ValueError, match=f"bias_delta: shares memory with {other}, expected memory of its own"):
        operator()(x, dy, out=out, bias_delta=shared)


def test_a_kernel_is_called_as_it_was_compiled(tensors: tuple[Array, Array]) -> None:
    plain = operator().compile(X, DY)
    both = operator().compile_async(X, DY, accumulate=True, bias_delta=True).result()
    out, bias = np.zeros(FILTER, np.float32), np.zeros(8, np.float32)
    refused = [
        (plain, {"accumulate": True}, r"accumulate: this kernel has no such option, expected compile\(.., acc"),
        (plain, {"bias_delta": bias}, r"bias_delta: this kernel has no such option"),
        (both, {"bias_delta": bias}, "accumulate: missing; this kernel is compiled with accumulate=True"),
        (both, {"accumulate": True}, "bias_delta: missing; this kernel is compiled with bias_delta=True"),
    ]
    for kernel, options, words in refused:
        with pytest.raises(ValueError, match=words):
            kernel(*tensors, out, **options)
    assert "accumulate true, bias_delta true" in str(both)


def test_gpus_have_no_options() -> None:
    with pytest.raises(ValueError, match="accumulate: kernels for GPUs do not have it"):
        operator().compile(X, DY, target="cuda -arch=sm_90", accumulate=True)
