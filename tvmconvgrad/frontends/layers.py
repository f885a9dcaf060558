"""The argument `layers` of `enable`: a function that says which layers our kernels may compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tvmconvgrad.spec.values import parse_bool, show


def check_layers(layers: Any) -> None:
    """Raise TypeError for what is neither None nor a function of one argument."""
    if layers is None:
        return
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


def is_allowed(layers: Callable[[Any], bool] | None, conv: object) -> bool:
    """What the user's function says of a convolution. Raises ValueError if it raises, TypeError for no bool.

    What called the function ends with that error: the framework's own kernel could go on, but the program is wrong.
    """
    if layers is None:
        return True
    try:
        answer = layers(conv)
    except Exception as error:
        raised = f"raised {type(error).__name__} when it was called with {conv}: {error}"
        raise ValueError(f"layers: {raised}") from error
    try:
        return parse_bool("layers", answer)
    except TypeError:
        answered = f"returned {show(answer)} of type {type(answer).__name__}"
        raise TypeError(f"layers: {answered} when it was called with {conv}, expected True or False") from None
