"""Random convolutions in JAX's words."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tvmconvgrad.jax as cgj
from tvmconvgrad.jax.problems.convolution import Convolution


@dataclass
class Drawn:
    """The arguments of one `lax.conv_general_dilated`, with small integers: sums are exact in every type."""

    lhs: Any
    rhs: Any
    numbers: dict[str, Any]


def draw(seed: int, groups: int | None = None, dilated: bool = True, dtype: Any = np.float32) -> Drawn:
    """A convolution with any order of axes. Of those with a result without elements another one is drawn."""
    random, integers = Random(seed), np.random.default_rng(seed)
    while True:
        rank, count = random.choice((1, 2, 2, 3)), groups or random.choice((1, 1, 2, 3))
        by_batch = count > 1 and random.random() < 0.4
        batch, outputs = random.randint(1, 3), random.randint(1, 4) * count
        inputs = random.randint(1, 4)
        image, kernel = ([random.randint(1, 7) for _ in range(rank)] for _ in range(2))
        kernel = [random.choice((1, 2, 3, size)) for size in kernel]
        lhs = [batch * count if by_batch else batch, inputs if by_batch else inputs * count, *image]
        rhs = [outputs, inputs, *kernel]
        orders = [random.sample(range(rank + 2), rank + 2) for _ in range(3)]
        numbers = {
            "window_strides": [random.choice((1, 1, 2, 3)) for _ in range(rank)],
            "padding": [(random.randint(-2, 5), random.randint(-2, 5)) for _ in range(rank)],
            "lhs_dilation": [random.choice((1, 2)) if dilated and random.random() < 0.4 else 1 for _ in range(rank)],
            "rhs_dilation": [random.choice((1, 1, 2)) for _ in range(rank)],
            "dimension_numbers": lax.ConvDimensionNumbers(*map(tuple, orders)),
            "batch_group_count" if by_batch else "feature_group_count": count,
        }
        shapes = [[shape[order.index(axis)] for axis in range(rank + 2)] for shape, order in zip((lhs, rhs), orders)]
        arrays = [jnp.asarray(integers.integers(-2, 3, shape), dtype) for shape in shapes]
        drawn = Drawn(arrays[0], arrays[1], numbers)
        if has_elements(drawn):
            return drawn


def by_xla(drawn: Drawn) -> Any:
    """XLA's own result. Padded before: some negative pads beside positive ones XLA computes wrongly itself."""
    numbers, conv = dict(drawn.numbers), described(drawn)
    pads = [(0, 0, 0)] * (conv.rank + 2)
    for axis, (begin, end), step in zip(conv.spec("lhs")[2:], conv.padding, conv.lhs_dilation):
        pads[axis] = begin, end, step - 1
    padded = lax.pad(drawn.lhs, drawn.lhs.dtype.type(0), pads)
    numbers |= {"padding": [(0, 0)] * conv.rank, "lhs_dilation": [1] * conv.rank}
    return lax.conv_general_dilated(padded, drawn.rhs, **numbers)


def has_elements(drawn: Drawn) -> bool:
    _, *image = (drawn.lhs.shape[axis] for axis in drawn.numbers["dimension_numbers"].lhs_spec[1:])
    axes = zip(image, drawn.numbers["padding"], drawn.numbers["lhs_dilation"])
    if any((size - 1) * step + 1 + sum(pads) < 1 for size, pads, step in axes):
        return False
    return 0 not in described(drawn).out


def described(drawn: Drawn) -> Convolution:
    numbers = {"batch_group_count": 1, "feature_group_count": 1, **drawn.numbers}
    out = jax.eval_shape(lambda: lax.conv_general_dilated(drawn.lhs, drawn.rhs, **drawn.numbers))
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    lists = (tuple(numbers[name]) for name in names)
    counts = numbers["feature_group_count"], numbers["batch_group_count"]
    specs = tuple(map(tuple, numbers["dimension_numbers"]))
    return Convolution(drawn.lhs.shape, drawn.rhs.shape, out.shape, specs, *lists, *counts, "f32")  # type: ignore[arg-type]


def integers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return jnp.asarray(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


X, W = integers(2, 8, 9, 4), integers(3, 3, 4, 6, seed=1)


def conv(x: Any, w: Any, stride: int = 2, **numbers: Any) -> Any:
    """The layer of most tests: 4 -> 6 channels, 3x3, channels last."""
    given = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **numbers}
    return lax.conv_general_dilated(x, w, (stride, stride), **given)


def loss(x: Any, w: Any) -> Any:
    """With gradients that are integers."""
    return (conv(x, w) * 2).sum()


def parts() -> list[str]:
    """The parts that our kernels computed since the last test. Fails if XLA computed one."""
    jax.block_until_ready(jax.live_arrays())  # calls are counted when they are made, on other threads
    rows = cgj.report().rows
    assert rows
    assert not [row for row in rows if row.why], cgj.report()
    assert all(row.calls for row in rows), cgj.report()
    return sorted({row.part for row in rows})


def equal(ours: Any, theirs: Any) -> bool:
    """Whether two trees of arrays are the same, bit for bit."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all()) for a, b in pairs)
