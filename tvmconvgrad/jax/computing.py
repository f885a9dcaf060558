"""A convolution by a kernel, in JAX's operations: what a reading changes before the kernel's call and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from tvmconvgrad.jax.convolution import LHS, OUT, RHS
from tvmconvgrad.jax.reading import Reading
from tvmconvgrad.spec.values import Shape

Array = Any
Call = Callable[[Array, Array, Shape], Array]
"""A kernel: from its two inputs and the shape of its result to the result."""


def compute(reading: Reading, call: Call, lhs: Array, rhs: Array, *, is_undone: bool = False) -> Array:
    """The result of a convolution of JAX.

    `is_undone` says that `rhs` is not JAX's but its reverse along the spatial axes.
    """
    given = {LHS: lhs, RHS: rhs}
    inputs = [_for_kernel(reading, name, given[name], is_undone) for name in reading.inputs]
    result = call(inputs[0], inputs[1], reading.arrangements[OUT].shape)
    return _from_kernel(reading, result)


def _for_kernel(reading: Reading, name: str, value: Array, is_undone: bool) -> Array:
    """An input as the kernel reads it."""
    roles = reading.roles
    if (name == roles.filter and roles.is_reversed) != (name == RHS and is_undone):
        value = lax.rev(value, reading.conv.spec(name)[2:])
    if name == roles.big:
        value = _grown(value, [(-begin, -end) for begin, end in reading.cuts])
    return reading.arrangements[name](value, lax)


def _from_kernel(reading: Reading, result: Array) -> Array:
    """The result as JAX's program expects it. What no product reaches is 0."""
    roles = reading.roles
    result = reading.arrangements[OUT].inverse(result, lax)
    if roles.filter == OUT and roles.is_reversed:
        result = lax.rev(result, reading.conv.spec(OUT)[2:])
    return _grown(result, reading.cuts) if roles.big == OUT else result


def _grown(value: Array, ends: Any) -> Array:
    """An array with more or fewer elements at both ends of each axis."""
    if not any(map(any, ends)):
        return value
    return lax.pad(value, value.dtype.type(0), [(begin, end, 0) for begin, end in ends])
