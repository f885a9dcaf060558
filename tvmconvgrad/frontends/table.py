"""A report as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> str:
    """Columns under their titles, each as wide as its longest cell, with the notes below."""
    lines = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([*text, *notes])
