"""The inputs of a call: by position or by name, in old and new names."""

from __future__ import annotations

from typing import Any

from tvmconvgrad.runtime import tensors
from tvmconvgrad.spec import Gradient, Operator
from tvmconvgrad.spec.names import NEW_NAMES
from tvmconvgrad.spec.values import nearest, parse_ints, show

_OPTIONS = ("out", "target", "accumulate", "bias_delta", "bias", "result_dtype")
"""The other names that a call takes."""


def bind(op: Operator, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The three inputs, whether they came by position or by name."""
    slots = _spellings(type(op))
    if len(inputs) > len(slots):
        raise TypeError(f"{type(op).__name__} takes {len(slots)} inputs, {len(inputs)} were given")
    bound: dict[int, Any] = dict(enumerate(inputs))
    for name, value in named.items():
        place = next((i for i, spellings in enumerate(slots) if name in spellings), None)
        if place is None:
            known = ", ".join("/".join(spellings) for spellings in slots)
            close = nearest(name, [*(word for spellings in slots for word in spellings), *_OPTIONS])
            options = f"{', '.join(_OPTIONS[:-1])} or {_OPTIONS[-1]}"
            raise TypeError(f"{type(op).__name__} has no input {name!r}{close}, expected {known}, {options}")
        if place in bound:
            raise TypeError(f"{name}: given twice, also as {'/'.join(slots[place])} by position or other spelling")
        bound[place] = value
    for place, name in enumerate(op.input_names):
        if place not in bound:
            raise TypeError(f"{name}: missing; {type(op).__name__} needs {' and '.join(op.input_names)}")
    return bound[0], bound[1], bound.get(2)


def shape_of(op: Operator, wanted: Any) -> tuple[int, ...] | None:
    """The shape input's value: a 1-D s32 tensor, or a sequence of ints."""
    if wanted is None:
        return None
    name = op.spelled(op.shape_attribute) if op.shape_attribute else "shape_input"
    if isinstance(wanted, (list, tuple)):
        return parse_ints(name, wanted, low=0)
    if not hasattr(wanted, "__dlpack__"):
        raise TypeError(f"{name}: {show(wanted)} is neither a 1-D s32 tensor nor a sequence of ints")
    return parse_ints(name, tensors.understand_shape(name, wanted), low=0)


def _spellings(kind: type[Operator]) -> list[tuple[str, ...]]:
    """The names of each input, old and new."""
    inputs = ["input_forward", "output_delta"] if kind.gradient is Gradient.FILTER else ["output_delta", "filter"]
    inputs += [kind.shape_attribute] if kind.shape_attribute else []
    return [(name, NEW_NAMES[name]) for name in inputs]
