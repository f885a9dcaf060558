"""What the commands print: pairs of a word and its value, one a line, sizes for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text


def console() -> Console:
    """Where results go. Text that is read by programs is not broken into lines."""
    return Console(highlight=False, soft_wrap=True)


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
