"""The rule by which JAX lowers a convolution for CPUs: to a call of our kernel, or by JAX's own rule.

Lowering is below autodiff, batching and tracing: whatever transforms a program in JAX writes convolutions in the end.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from tvmconvgrad.frontends.layers import is_allowed
from tvmconvgrad.jax import private
from tvmconvgrad.jax.building import ask
from tvmconvgrad.jax.computing import compute
from tvmconvgrad.jax.handler import TARGET
from tvmconvgrad.jax.problems.convolution import RHS, Convolution
from tvmconvgrad.jax.problems.reading import Reading, read
from tvmconvgrad.jax.settings import Settings
from tvmconvgrad.runtime import threads
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import Shape

DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_NUMBERS = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "feature_group_count",
    "batch_group_count",
)


class Lowered:
    """What a convolution was lowered to: the number of our kernel, or the reason why XLA computes it."""

    def __init__(self, conv: Convolution) -> None:
        self.conv = conv
        self.reading: Reading | None = None
        self.problem: Problem | None = None
        self.number: int | None = None
        self.reason = ""


def lower(settings: Settings, context: Any, lhs: Any, rhs: Any, **numbers: Any) -> tuple[Any, Lowered | None]:
    """The values of a call of our kernel, and what was found; None for the values if XLA computes them.

    `context` is JAX's, `numbers` are the parameters of the primitive. Nothing is found of arrays whose sizes are not
    known before the program runs, nor of complex ones, for which JAX's rule lowers convolutions of real ones.
    """
    conv = _described(context, numbers)
    if conv is None:
        return None, None
    found = Lowered(conv)
    is_wanted = is_allowed(settings.layers, conv)  # whose errors end the lowering
    undone = private.reversed_operand(rhs, conv.spec(RHS)[2:])
    try:
        _check(context, conv, is_wanted)
        found.reading, found.problem = read(conv, undone is not None)
        found.number = ask(found.problem, settings.target)
    except ValueError as reason:
        found.reason = str(reason)
        return None, found
    threads.prepare()
    taken = undone if found.reading.takes_unreversed else rhs
    return _call(context, found.reading, found.number, lhs, taken), found


def _described(context: Any, numbers: dict[str, Any]) -> Convolution | None:
    lhs, rhs = context.avals_in
    (out,) = context.avals_out
    shapes: list[Any] = [tuple(aval.shape) for aval in (lhs, rhs, out)]
    if not all(isinstance(size, int) for shape in shapes for size in shape) or lhs.dtype.kind == "c":
        return None
    specs: Any = tuple(tuple(spec) for spec in numbers["dimension_numbers"])
    given: list[Any] = [numbers[name] for name in _NUMBERS]
    given[:4] = [tuple(value) for value in given[:4]]
    given[1] = tuple((int(begin), int(end)) for begin, end in given[1])
    types = {str(aval.dtype) for aval in (lhs, rhs, out)}
    name = types.pop() if len(types) == 1 else " and ".join(sorted(types))
    described: Any = (*shapes, specs, *given, DTYPES.get(name, name))
    return Convolution(*described)


def _check(context: Any, conv: Convolution, is_wanted: bool) -> None:
    """Raise ValueError, which says why, for what is left to XLA whatever sum it is."""
    if conv.dtype not in DTYPES.values():
        raise ValueError(f"type {conv.dtype}")
    if private.is_for_export(context):
        raise ValueError("a program for jax.export, which other machines run, too")
    if private.is_partitioned(context):
        raise ValueError("a program that XLA splits over devices: jax.shard_map would split it before")
    if not is_wanted:
        raise ValueError("enable(layers=...) leaves it out")


def _call(context: Any, reading: Reading, number: int, lhs: Any, rhs: Any) -> Any:
    def call(first: Any, second: Any, shape: Shape) -> Any:
        result = jax.ShapeDtypeStruct(shape, first.dtype)  # type: ignore[no-untyped-call]
        return jax.ffi.ffi_call(TARGET, result)(first, second, number=np.int64(number))

    def ours(lhs: Any, rhs: Any) -> Any:
        return compute(reading, call, lhs, rhs)

    return mlir.lower_fun(ours, multiple_results=False)(context, lhs, rhs)
