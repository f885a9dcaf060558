"""Convolutions read as sums of the specification, beside XLA's own results, on integers whose sums are exact.

The sums are computed in float64 by their definition: what is tested here needs no kernel.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from tests.jax.support import by_xla, described, draw
from tests.support.cases.sampling import every
from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.jax.computing import compute
from tvmconvgrad.jax.problems.convolution import Convolution
from tvmconvgrad.jax.problems.reading import Reading, read
from tvmconvgrad.reference import reference


def by_definition(conv: Convolution, lhs: Any, rhs: Any, is_reversed: bool = False) -> tuple[Reading, Any]:
    """The best reading and its result; `is_reversed` says that `rhs` is what JAX's is the reverse of."""
    reading, problem = read(conv, is_reversed)
    if is_reversed and not reading.takes_unreversed:
        rhs = lax.rev(rhs, conv.spec("rhs")[2:])

    def call(first: Any, second: Any, shape: tuple[int, ...]) -> Any:
        result = reference(problem, np.asarray(first), np.asarray(second))
        assert result.shape == shape
        return jax.numpy.asarray(result, np.float32)

    return reading, compute(reading, call, lhs, rhs)


@pytest.mark.parametrize("seed", every(12, range(24), second=6))
def test_random_convolutions(seed: int) -> None:
    """Any dimension numbers, dilations on both sides, pads of any sign, both kinds of groups."""
    for more in range(10):
        drawn = draw(1000 * seed + more)
        conv = described(drawn)
        expected = by_xla(drawn)
        try:
            _, got = by_definition(conv, drawn.lhs, drawn.rhs)
        except ValueError:
            assert not has_reading(conv) or not np.any(expected), drawn
            continue
        assert np.array_equal(got, expected), drawn


def has_reading(conv: Convolution) -> bool:
    """Whether a sum without pads is one of the three."""
    lhs, rhs, out = (set(conv.steps(tensor)) == {1} for tensor in ("lhs", "rhs", "out"))
    return lhs or rhs or (out and conv.batch_group_count == 1)


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, "SAME"), (2, 1, "SAME"), (1, 2, "VALID")])
def test_the_three_sums_of_a_layer(layout: Any, groups: int, stride: int, dilation: int, padding: str) -> None:
    """Both gradients as JAX writes them, without moving anything but filters with groups."""
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (2, 8, 9, 6)).astype(np.float32)
    w = random.integers(-3, 4, (3, 3, 6 // groups, 12)).astype(np.float32)
    if layout[0] == "NCHW":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    out, back = jax.vjp(forward, x, w)
    jaxpr = jax.make_jaxpr(lambda g: back(g))(out)
    found = [read_equation(equation, jaxpr) for equation in equations(jaxpr)]
    first = [read_equation(equation, jaxpr) for equation in equations(jax.make_jaxpr(forward)(x, w))]
    parts = [reading.roles.part for reading in (*first, *found)]
    assert parts[0] is Part.FORWARD
    # without strides the data gradient is a forward, too, and with groups either moves the filter
    assert set(parts[1:]) == {Part.WEIGHTS, Part.DATA} or (
        groups > 1 and set(parts[1:]) == {Part.WEIGHTS, Part.FORWARD}
    )
    for reading in (*first, *found):
        moved = {name: each.moved for name, each in reading.arrangements.items()}
        assert not any(size for name, size in moved.items() if groups == 1 or name != reading.roles.w)


@pytest.mark.parametrize("batch", [1, 4])
def test_an_image_is_no_filter(batch: int) -> None:
    """Of one image the batch can stand anywhere, and a filter that is moved may be larger than it."""
    x, w = np.zeros((batch, 4, 4, 16), np.float32), np.zeros((2, 2, 16, 32), np.float32)
    jaxpr = jax.make_jaxpr(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"))(x, w)
    (equation,) = equations(jaxpr)
    assert read_equation(equation, jaxpr).roles.part is Part.DATA


@pytest.mark.parametrize(("batch", "is_new"), [(2, False), (3, True)])
def test_large_results_lie_in_new_pages(batch: int, is_new: bool) -> None:
    """Of two images the result has 32 MiB."""
    shapes = ((batch, 256, 256, 8), (1, 1, 8, 64), (batch, 256, 256, 64))
    numbers = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    specs = {"dimension_numbers": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}
    conv = described_shapes(*shapes, {**numbers, **specs, "feature_group_count": 1, "batch_group_count": 1})
    _, problem = read(conv)
    assert problem.in_new_pages is is_new
    assert problem.may_bypass_caches is not is_new


def equations(jaxpr: Any) -> list[Any]:
    return [equation for equation in jaxpr.eqns if equation.primitive.name == "conv_general_dilated"]


def read_equation(equation: Any, jaxpr: Any) -> Reading:
    reversals = {each.outvars[0] for each in jaxpr.eqns if each.primitive.name == "rev"}
    numbers = dict(equation.params)
    lhs, rhs = (variable.aval for variable in equation.invars)
    conv = described_shapes(lhs.shape, rhs.shape, equation.outvars[0].aval.shape, numbers)
    return read(conv, equation.invars[1] in reversals)[0]


def described_shapes(lhs: Any, rhs: Any, out: Any, numbers: dict[str, Any]) -> Convolution:
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count", "batch_group_count")
    specs = tuple(tuple(spec) for spec in numbers["dimension_numbers"])
    return Convolution(lhs, rhs, out, specs, *(numbers[name] for name in names), "f32")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_a_reversal_that_was_there_before_is_undone(seed: int) -> None:
    """Equal results, however the filter comes."""
    random = Random(seed)
    drawn = draw(random.randrange(1 << 30), groups=1, dilated=False)
    conv = described(drawn)
    expected = by_xla(replace(drawn, rhs=lax.rev(drawn.rhs, conv.spec("rhs")[2:])))
    _, got = by_definition(conv, drawn.lhs, drawn.rhs, is_reversed=True)
    assert np.array_equal(got, expected)
