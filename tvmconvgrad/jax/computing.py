"""A convolution by a kernel, in JAX's operations: what a reading changes before the kernel's call and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

from tvmconvgrad.jax.problems.convolution import LHS, OUT, RHS
from tvmconvgrad.jax.problems.reading import Reading
from tvmconvgrad.spec.values import Shape

Array = Any
Call = Callable[[Array, Array, Shape], Array]
"""A kernel: from its two inputs and the shape of its result to the result."""


def compute(reading: Reading, call: Call, lhs: Array, rhs: Array) -> Array:
    """The result of a convolution of JAX, from what the reading takes as its operands."""
    given = {LHS: lhs, RHS: rhs}
    inputs = [_for_kernel(reading, name, given[name]) for name in reading.inputs]
    result = call(inputs[0], inputs[1], reading.arrangements[OUT].shape)
    return _from_kernel(reading, result)


def _for_kernel(reading: Reading, name: str, value: Array) -> Array:
    """An input as the kernel reads it."""
    if name == reading.roles.x:
        value = _grown(value, [(-begin, -end) for begin, end in reading.cuts])
    return reading.arrangements[name](value, lax)


def _from_kernel(reading: Reading, result: Array) -> Array:
    """The result as JAX's program expects it. What no product reaches is 0."""
    result = reading.arrangements[OUT].inverse(result, lax)
    return _grown(result, reading.cuts) if reading.roles.x == OUT else result


def _grown(value: Array, ends: Any) -> Array:
    """An array with more or fewer elements at both ends of each axis."""
    if not any(map(any, ends)):
        return value
    return lax.pad(value, value.dtype.type(0), [(begin, end, 0) for begin, end in ends])
