"""What a kernel does with its sums besides rounding them to the inputs' type: the options of its epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmconvgrad.spec.dtypes import parse_dtype
from tvmconvgrad.spec.values import fields_of, parse_bool, show

ACCUMULATOR = "f32"
"""The type in which all sums are taken."""


@dataclass(frozen=True)
class Epilogue:
    """The options of a kernel's final write; by default a result of the inputs' type replaces what was there."""

    result_dtype: str = ""
    """"f32" for results of 16-bit inputs; "" is the inputs' type."""
    accumulate: bool = False
    """Whether the result is added to what is there."""
    bias_delta: bool = False
    """Whether the call also gives the bias gradient: the sum of output_delta over images and positions."""
    bias: bool = False
    """Whether a vector over the result's channels is added to it. What is the data gradient of one layer is the forward
    of another, which has a bias."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options that are not the default; `parse_epilogue` takes them back."""
        return {name: value for name, value in fields_of(self).items() if value}

    @property
    def words(self) -> list[tuple[str, str]]:
        """Name and value of the options that are not the default, in words without spaces."""
        return [(name, str(value).lower()) for name, value in self.to_dict().items()]


PLAIN = Epilogue()


def parse_epilogue(
    dtype: str,
    is_filter: bool,
    result_dtype: object = None,
    accumulate: object = False,
    bias_delta: object = False,
    bias: object = False,
) -> Epilogue:
    """Return the options for inputs of type `dtype`, checked; `is_filter` says whether the result is a filter's
    gradient.

    `result_dtype` is f32 or the inputs' type, which None is, too. Raises ValueError or TypeError, which name the
    option, for anything else, for an option that is no bool, and for a bias that is not added.
    """
    wanted = dtype if result_dtype is None else _parse_result_dtype(result_dtype)
    if wanted not in (dtype, ACCUMULATOR):
        expected = f"expected f32 or the inputs' type, {dtype}"
        raise ValueError(f"result_dtype: {wanted} is not supported for inputs of {dtype}, {expected}")
    adds, gives_bias = parse_bool("accumulate", accumulate), parse_bool("bias_delta", bias_delta)
    found = Epilogue("" if wanted == dtype else wanted, adds, gives_bias, parse_bool("bias", bias))
    if found.bias:
        _check_bias(found, is_filter)
    return found


def _check_bias(epilogue: Epilogue, is_filter: bool) -> None:
    """Raise ValueError where no bias is added: to a filter, or in a call with another option that it excludes."""
    if is_filter:
        raise ValueError("bias: a filter's gradient has none, expected an operator whose result is data")
    if epilogue.accumulate:
        raise ValueError("bias: not with accumulate=True, which adds to what out has; expected one of them")
    if epilogue.bias_delta:
        raise ValueError("bias: a forward adds it, a gradient gives bias_delta; expected one of them")


def epilogue_from_dict(dtype: str, is_filter: bool, options: Mapping[str, Any]) -> Epilogue:
    """Return the options of which `Epilogue.to_dict` made `options`. Raises ValueError or TypeError for others."""
    unknown = sorted(set(options) - set(fields_of(PLAIN)))
    if unknown:
        raise ValueError(f"epilogue: {show(unknown[0])} is unknown, expected of {', '.join(fields_of(PLAIN))}")
    return parse_epilogue(dtype, is_filter, **options)


def check_device(epilogue: Epilogue, is_gpu: bool) -> None:
    """Raise ValueError for options on a GPU, whose kernels have none."""
    if is_gpu and epilogue != PLAIN:
        option, _ = epilogue.words[0]
        raise ValueError(f"{option}: kernels for GPUs do not have it, expected tensors on the CPU")


def _parse_result_dtype(value: object) -> str:
    try:
        return parse_dtype(value)
    except ValueError as reason:
        raise ValueError(f"result_{reason}") from None
