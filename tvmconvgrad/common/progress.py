"""How far something is, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, unless it is to be quiet; is told what is under way, and how many of how many are done."""
    if quiet:
        yield lambda what, done, total: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:  # in an environment that has no compiler either
        yield lambda what, done, total: None
        return

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    shown = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
