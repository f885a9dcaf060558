"""Errors in the one line that a report has for them."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """An error's type, and the first line of what it says."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
