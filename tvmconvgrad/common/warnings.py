"""Warnings about the surroundings: no line of a program is to blame, so none is shown, and each is said once."""

from __future__ import annotations

import warnings
from typing import Any

_said: dict[Any, Any] = {}


def say(message: str, category: type[Warning]) -> None:
    """Warn of what no line of the caller's program is to blame for."""
    warnings.warn_explicit(message, category, "<tvmconvgrad>", 1, "tvmconvgrad", _said)


def cause(reason: OSError) -> str:
    """Why the system refuses, without the name of a file that differs each time."""
    return reason.strerror or str(reason)
