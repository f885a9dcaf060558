"""The arguments of `enable`, checked.

They hold for the whole process, not for a thread: autograd computes gradients in threads of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tvmconvgrad.frontends.algorithms import parse_algorithm
from tvmconvgrad.spec.values import show
from tvmconvgrad.torch.convolution import Convolution

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True)
class Settings:
    """Which convolutions our kernels may compute, and by which algorithms."""

    algorithm: str
    dtypes: frozenset[torch.dtype]
    layers: Callable[[Convolution], bool] | None

    def allows(self, conv: Convolution) -> bool:
        """What the user's `layers` says of a convolution. Raises ValueError if it raises, TypeError for no bool.

        The call of the convolution ends with that error: PyTorch could go on, but the program is wrong.
        """
        if self.layers is None:
            return True
        try:
            answer = self.layers(conv)
        except Exception as error:
            raised = f"raised {type(error).__name__} when it was called with {conv}: {error}"
            raise ValueError(f"layers: {raised}") from error
        if not isinstance(answer, bool):
            answered = f"returned {show(answer)} of type {type(answer).__name__}"
            raise TypeError(f"layers: {answered} when it was called with {conv}, expected True or False")
        return answer


def parse_settings(
    algorithm: str, dtypes: Iterable[torch.dtype] | None, layers: Callable[[Convolution], bool] | None
) -> Settings:
    """Check the arguments of `enable`. Raises TypeError or ValueError, which names the argument."""
    named = frozenset(DTYPES) if dtypes is None else frozenset(_dtype(dtype) for dtype in _listed(dtypes))
    if not named:
        raise ValueError("dtypes: is empty, expected at least one of torch.float32, torch.bfloat16, torch.float16")
    if layers is not None:
        _check_function(layers)
    return Settings(parse_algorithm(algorithm), named, layers)


def _check_function(layers: Any) -> None:
    """Raise TypeError for what cannot be called with one argument."""
    if not callable(layers):
        raise TypeError(f"layers: {show(layers)} is not callable, expected a function of a Convolution")
    try:
        signature = inspect.signature(layers)
    except (TypeError, ValueError):  # as of some functions of C: the first call will tell
        return
    try:
        signature.bind(None)
    except TypeError as reason:
        expected = "expected a function of one argument, a Convolution"
        raise TypeError(f"layers: {show(layers)} takes other arguments ({reason}), {expected}") from None


def _listed(dtypes: Any) -> list[Any]:
    if isinstance(dtypes, (str, torch.dtype)) or not isinstance(dtypes, Iterable):
        raise TypeError(f"dtypes: {show(dtypes)} is not a sequence of torch.dtype")
    return list(dtypes)


def _dtype(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtypes: {show(dtype)} is not a torch.dtype")
    if dtype not in DTYPES:
        raise ValueError(f"dtypes: {dtype} is not supported, expected torch.float32, torch.bfloat16 or torch.float16")
    return dtype
