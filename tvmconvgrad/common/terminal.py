"""What is printed for people: tables, facts one a line, sizes and times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn

import rich.table
from rich.console import Console
from rich.text import Text

_WIDTH = 120
"""Columns of a table where neither a terminal nor COLUMNS says how many there are."""


class _Output(Console):
    """Standard output. Where nobody reads it, the command ends as others do."""

    def on_broken_pipe(self) -> NoReturn:
        """Let the group of commands (cli/common/errors.py) end it."""
        raise


def console() -> Console:
    """Where results go. Text that is read by programs is not broken into lines."""
    return _Output(highlight=False, soft_wrap=True)


def print_table(table: rich.table.Table, out: Console | None = None) -> None:
    """Print a table as wide as the terminal, or as COLUMNS says; its cells are broken where they must."""
    out = out or console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out = _Output(file=out.file, highlight=False, width=_WIDTH)
    out.print(table, soft_wrap=False)


def print_facts(facts: Mapping[str, object]) -> None:
    """One line for each fact, its name first."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        console().print(Text.assemble((f"{name:<{width}}", "bold cyan"), str(value)))


def in_bytes(count: int) -> str:
    """A size in bytes, KiB, MiB or GiB."""
    if count < 1024:
        return f"{count} bytes"
    size = count / 1024
    for unit in ("KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def in_seconds(seconds: float) -> str:
    """A time in us, ms or s, with three digits that count."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
