"""Transformations of JAX, each beside the same by XLA alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import tvmconvgrad.jax as cgj
from tests.jax.support import W, X, conv, equal, integers, loss, parts


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """By XLA alone, and with our kernels."""
    expected = compute()
    with cgj.enabled():
        return expected, compute()


def test_grad_and_value_and_grad() -> None:
    expected, got = both(lambda: jax.jit(jax.value_and_grad(loss, (0, 1)))(X, W))
    assert parts() == ["data gradient", "forward", "weights gradient"]
    assert equal(got, expected)
    expected, got = both(lambda: jax.grad(loss, 1)(X, W))
    assert equal(got, expected)


def test_jvp_and_linearize() -> None:
    expected, got = both(lambda: jax.jvp(conv, (X, W), (X, W)))
    assert equal(got, expected)
    assert parts() == ["forward"]


def test_hessian() -> None:
    """Of a net whose second derivatives are integers."""
    x, w = X[:1, :3, :3, :2], W[:2, :2, :2, :2]

    def net(w: Any) -> Any:
        return (conv(x, w, stride=1) ** 2).sum()

    expected, got = both(lambda: jax.jit(jax.hessian(net))(w))
    assert equal(got, expected)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_vmap(axes: Any) -> None:
    """Over images, over filters, over both; and of gradients for each example."""
    x = jnp.stack([X, X + 1]) if axes[0] == 0 else X
    w = jnp.stack([W, W + 1]) if axes[1] == 0 else W
    expected, got = both(lambda: jax.vmap(conv, axes)(x, w))
    assert equal(got, expected)
    expected, got = both(lambda: jax.jit(jax.vmap(jax.grad(loss, (0, 1)), axes))(x, w))
    assert equal(got, expected)
    assert parts() == ["data gradient", "weights gradient"]


def test_scan_and_while() -> None:
    w = integers(3, 3, 4, 4, seed=1)

    def net(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (jnp.sign(conv(x, w, stride=1)) + x, None), x, None, length=3)[0].sum()

    expected, got = both(lambda: jax.jit(jax.value_and_grad(net))(X))
    assert equal(got, expected)
    assert {row.calls for row in cgj.report().rows if row.part == "forward"} >= {3}


def test_checkpoint() -> None:
    w = integers(3, 3, 4, 4, seed=1)

    def net(x: Any, w: Any) -> Any:
        layer = jax.checkpoint(lambda x: jnp.maximum(conv(x, w, stride=1), 0))
        return layer(layer(x)).sum()

    expected, got = both(lambda: jax.jit(jax.grad(net, (0, 1)))(X, w))
    assert equal(got, expected)
    assert parts() == ["data gradient", "forward", "weights gradient"]


def test_donated_buffers() -> None:
    """Results may lie where a donated input was: never before it has been read."""
    w = integers(3, 3, 4, 4, seed=1)
    step = jax.jit(lambda x, w: conv(x, w, stride=1), donate_argnums=0)
    expected = conv(X, w, stride=1)
    with cgj.enabled():
        given = X + 0
        got = step(given, w)
        assert given.is_deleted()
    assert equal(got, expected)


def test_mixed_precision() -> None:
    """Parameters in f32, sums in bf16: the parameters' gradients are f32 again."""

    def mixed(x: Any, w: Any) -> Any:
        return loss(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).astype(jnp.float32)

    expected, got = both(lambda: jax.jit(jax.grad(mixed, (0, 1)))(X, W))
    assert equal(got, expected)
    assert {row.dtype for row in cgj.report().rows} == {"bf16"}


@pytest.fixture
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("x64")
def test_x64() -> None:
    """Where numbers are of 64 bits by default: f32 is ours, f64 is XLA's."""
    wide = jnp.asarray(np.asarray(X), jnp.float64), jnp.asarray(np.asarray(W), jnp.float64)
    expected, got = both(lambda: (jax.grad(loss, (0, 1))(X, W), jax.grad(loss, (0, 1))(*wide)))
    assert equal(got, expected)
    assert {(row.dtype, row.by) for row in cgj.report().rows} == {("f32", "tvmconvgrad"), ("float64", "XLA")}


def test_export_stays_jaxs() -> None:
    """What is exported runs where this package is not."""
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with cgj.enabled():
        exported = export.export(jax.jit(lambda x: conv(x, W)))(shape)
        assert "tvmconvgrad" not in exported.mlir_module()
        assert equal(exported.call(X), conv(X, W))
    assert "a program for jax.export, which other machines run, too" in {row.why for row in cgj.report().rows}


def test_export_of_unknown_sizes() -> None:
    (batch,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, *X.shape[1:]), X.dtype)
    expected = conv(X, W)
    with cgj.enabled():
        exported = export.export(jax.jit(lambda x: conv(x, W)))(shape)
        assert equal(exported.call(X), expected)
