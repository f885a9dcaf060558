"""What a session has found: a table for the terminal, and curves of the best so far as a picture or a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import rich.table
from rich.box import SIMPLE_HEAD
from rich.text import Text

from tvmconvgrad.files.new_file import new_file, write_text
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import Entry, key
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec.values import counted
from tvmconvgrad.tuning.progress import gflops
from tvmconvgrad.tuning.search.search import Found
from tvmconvgrad.workers.environment import tvm_version

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMED = 12
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px sans-serif; margin: 2em auto; max-width: 60em } td, th { padding: 2px 10px; text-align: right }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left } svg { max-width: 100% }
</style></head><body><h1>{{ title }}</h1>{{ curves }}
<table><tr>{% for word in head %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></body></html>
"""
_HEAD = ("layer", "trials", "ms", "GFLOP/s", "gain", "schedule")


def summary(tasks: Sequence[Task], entries: Sequence[Entry]) -> rich.table.Table:
    """A row for each task that has an entry, and the mean gain."""
    table = rich.table.Table(
        box=SIMPLE_HEAD, title=f"{len(entries)} of {counted(len(tasks), 'layer')}", title_justify="left"
    )
    for word in _HEAD:
        numbers = word not in (_HEAD[0], _HEAD[-1])
        table.add_column(word, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    for row in _rows(tasks, entries):
        table.add_row(*(Text(cell) for cell in row))
    if entries:
        mean = geometric_mean([entry.gain for entry in entries])
        table.add_section()
        table.add_row("geometric mean", "", "", "", f"{mean:.3f}", "")
    return table


def write(path: Path, title: str, tasks: Sequence[Task], found: Sequence[Found], entries: Sequence[Entry]) -> None:
    """Write the report in the format that the suffix names; OSError."""
    figure = _curves(title, found)
    if path.suffix == ".png":
        with new_file(path) as file:
            figure.savefig(file, dpi=150, format="png")
        return
    import jinja2
    import markupsafe

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    template = jinja2.Environment(autoescape=True).from_string(_PAGE)
    curves = markupsafe.Markup(svg[svg.index("<svg") :])
    page = template.render(title=title, curves=curves, head=_HEAD, rows=_rows(tasks, entries))
    write_text(path, page)


def _rows(tasks: Sequence[Task], entries: Sequence[Entry]) -> list[list[str]]:
    keys = {entry.key: entry for entry in entries}
    rows = []
    for task in tasks:
        entry = keys.get(key(task.problem, task.target, tvm_version(), VERSION))
        if entry is not None:
            schedule = "default" if entry.rule is None else entry.plan
            speed = f"{gflops(task, entry.seconds):.1f}"
            rows.append(
                [task.title, str(entry.trials), f"{entry.seconds * 1e3:.3f}", speed, f"{entry.gain:.3f}", schedule]
            )
    return rows


def best_so_far(times: Sequence[float | None]) -> list[float]:
    """After each trial, the least time of those until then; infinite before the first."""
    found, least = [], float("inf")
    for each in times:
        least = min(least, float("inf") if each is None else each)
        found.append(least)
    return found


def _curves(title: str, found: Sequence[Found]) -> Figure:
    """The speed of the best so far, after each trial; a line for each layer.

    Not by the default's: what is gained over that, only the final tells.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    panel = figure.subplots()
    for each in found:
        speeds = [gflops(each.task, best) for best in best_so_far(each.times)]
        panel.step(range(1, len(speeds) + 1), speeds, where="post", label=each.task.title, linewidth=1)
    panel.set(xlabel="trials", ylabel="GFLOP/s of the best so far, each alone", title=title)
    panel.spines[["top", "right"]].set_visible(False)
    if 0 < len(found) <= _MOST_NAMED:
        panel.legend(fontsize=8, frameon=False)
    return figure
