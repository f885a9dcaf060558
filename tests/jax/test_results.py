"""Results by our kernels beside XLA's, bit for bit, on integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import tvmconvgrad.jax as cgj
from tests.jax.support import W, X, by_xla, conv, draw, equal, integers, loss, parts

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
THREE = ["data gradient", "forward", "weights gradient"]
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NDHWC", "DHWIO", "NDHWC")}


@pytest.mark.parametrize("rank", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_three_sums(rank: int, dtype: Any) -> None:
    """All types, one to three axes, with strides and groups."""
    x, w = integers(2, *[6] * rank, 4, dtype=dtype), integers(*[3] * rank, 2, 4, seed=1, dtype=dtype)
    if rank == 2:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    numbers: Any = {"dimension_numbers": LAYOUTS[rank], "feature_group_count": 2}

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, [2] * rank, "SAME", **numbers)

    def all_three(x: Any, w: Any) -> Any:
        out, back = jax.vjp(forward, x, w)
        return out, back(jnp.ones_like(out))

    expected = jax.jit(all_three)(x, w)
    with cgj.enabled():
        got = jax.jit(all_three)(x, w)
    assert parts() == THREE
    assert equal(got, expected)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(24)])
def test_random_convolutions(seed: int) -> None:
    drawn = draw(seed, dtype=DTYPES[seed % 3])
    expected = by_xla(drawn)
    with cgj.enabled():
        got = lax.conv_general_dilated(drawn.lhs, drawn.rhs, **drawn.numbers)
    assert equal(got, expected), drawn


def test_the_gradient_of_a_gradient_reads_the_filter_as_it_is() -> None:
    """The reversal in JAX's data gradient is undone, not computed."""
    with cgj.enabled():
        text = jax.jit(jax.grad(loss)).lower(X, W).compile().as_text()
        assert "tvmconvgrad_convolution" in text
        assert "reverse(" not in text
        jax.jit(jax.grad(loss))(X, W)
    assert "reverse(" in jax.jit(jax.grad(loss)).lower(X, W).compile().as_text()
    assert parts() == ["data gradient"]


@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_transposed_convolutions(transpose_kernel: bool) -> None:
    w = integers(3, 3, 6, 4, seed=1) if transpose_kernel else W

    def all_three(x: Any, w: Any) -> Any:
        out, back = jax.vjp(
            lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=transpose_kernel), x, w
        )
        return out, back(out)

    expected = jax.jit(all_three)(X, w)
    with cgj.enabled():
        got = jax.block_until_ready(jax.jit(all_three)(X, w))
        assert parts() == THREE
        text = jax.jit(all_three).lower(X, w).compile().as_text()
    assert equal(got, expected)
    # What is moved is the program's own: with transpose_kernel the filter, and its gradient back.
    assert any(operation in text for operation in ("} transpose(", "} reverse(")) is transpose_kernel


def test_what_is_left_to_xla() -> None:
    wider = conv(X.astype(jnp.bfloat16), W.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    with cgj.enabled(layers=lambda conv: conv.window_strides == (2, 2)):
        conv(X, W, stride=1)
        got = conv(X.astype(jnp.bfloat16), W.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        empty = conv(X[:0], W)
    assert equal(got, wider)
    assert empty.shape == (0, 4, 5, 6)
    reasons = {row.why for row in cgj.report().rows}
    assert {
        "enable(layers=...) leaves it out",
        "type bfloat16 and float32",
        "an array without elements",
    } <= reasons


def test_complex_arrays() -> None:
    """JAX's rule makes convolutions of real arrays of one of complex ones."""
    x, w = X + 1j * X[::-1], W - 1j * W[::-1]
    expected = conv(x, w)
    with cgj.enabled():
        got = jax.block_until_ready(conv(x, w))
    assert parts() == ["forward"]
    assert equal(got, expected)


def test_strides_and_dilations_of_all_three() -> None:
    """No sum of the specification: JAX's own rule computes it."""
    numbers: Any = {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 2), "rhs_dilation": (2, 2)}
    expected = conv(X, W, **numbers)
    with cgj.enabled():
        got = conv(X, W, **numbers)
    assert equal(got, expected)
    assert [row.by for row in cgj.report().rows] == ["XLA"]


def test_algorithm_auto() -> None:
    x, w = integers(1, 16, 16, 32), integers(3, 3, 32, 32, seed=1)
    expected = conv(x, w, stride=1)
    with cgj.enabled("auto"):
        got = conv(x, w, stride=1)
    assert parts() == ["forward"]
    assert jnp.allclose(got, expected, atol=1e-3)
