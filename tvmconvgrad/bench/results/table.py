"""The report on a terminal: a line for each gradient as it comes, and the means at the end."""

from __future__ import annotations

from collections.abc import Sequence

import rich.table
from rich.box import SIMPLE_HEAD
from rich.text import Text

from tvmconvgrad.bench.results.measurement import Column, Measurement, Ratio
from tvmconvgrad.bench.results.summary import Group, Mean
from tvmconvgrad.common.terminal import in_bytes

_NAME, _KIND, _RATIO, _SHARE = 28, 8, 20, 6
_FAST, _EVEN, _SLOW = "green", "", "red"


class Table:
    """Lays out lines for a set of columns. Ratios above 1 are in favour of ours."""

    def __init__(self, columns: Sequence[Column], peak: float) -> None:
        self._columns, self._peak = columns, peak

    def head(self) -> Text:
        """The titles."""
        titles = "".join(f"{column.title:<{_width(column)}}" for column in self._columns)
        words = (
            f"{'layer':<{_NAME}}{'gradient':<{_KIND + 6}}{'ms':>8}{'GFLOP/s':>9}{'peak':>{_SHARE}}  {titles}workspace"
        )
        return Text(words, style="bold")

    def line(self, measured: Measurement) -> Text:
        """One gradient."""
        text = Text(f"{measured.layer:<{_NAME}}{measured.kind:<{_KIND}}{measured.dtype:<6}")
        text.append(
            f"{measured.seconds * 1e3:>8.2f}{measured.gflops:>9.1f}{measured.gflops / self._peak:>{_SHARE}.0%}  "
        )
        for column in self._columns:
            text.append_text(_ratio(measured, column))
        fits = measured.workspace_fits
        text.append(in_bytes(measured.workspace_bytes) + ("" if fits else " > inputs + output"), "" if fits else _SLOW)
        return text

    def notes(self, measured: Measurement) -> list[Text]:
        """What to say below a gradient's line: whose result differs."""
        differences = measured.differences.items()
        return [Text(f"  ! {label}: its result differs: {reason}", style="yellow") for label, reason in differences]

    def summary(self, groups: Sequence[Group]) -> rich.table.Table:
        """The means of each column, and below each the least and where it is."""
        table = rich.table.Table("geometric means", box=SIMPLE_HEAD)
        for column in self._columns:
            table.add_column(column.title)
        table.add_column("share of peak")
        for place, group in enumerate(groups):
            if place and group.operator != groups[place - 1].operator:
                table.add_section()
            cells = (_mean(group, group.ratios[column.title], "{:.2f}") for column in self._columns)
            title = Text(f"{group.title} ({group.count}), {group.dtype}", "bold").append(
                f"\n{group.operator}", "not bold"
            )
            table.add_row(title, *cells, _mean(group, group.share, "{:.0%}"))
        return table


def _width(column: Column) -> int:
    return max(_RATIO, len(column.title) + 2)


def _ratio(measured: Measurement, column: Column) -> Text:
    ratio = measured.ratio(column.labels)
    mark = "!" if any(label in measured.differences for label in column.labels) else ""
    if ratio is None:
        reason = next((measured.refusals[label] for label in column.labels if label in measured.refusals), "-")
        return Text(_cut(reason, _width(column) - 2).ljust(_width(column)), style="dim")
    words = f"{_short(ratio.median):>5} ({_short(ratio.least)}-{_short(ratio.greatest)}){mark}"
    return Text(words.ljust(_width(column)), style=_colour(ratio))


def _colour(ratio: Ratio) -> str:
    if ratio.median >= 1:
        return _FAST
    return _SLOW if ratio.median < 0.95 else _EVEN


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _cut(words: str, width: int) -> str:
    words = words.partition(" (")[0]
    return words if len(words) <= width else words[: width - 1] + "…"


def _mean(group: Group, mean: Mean | None, shape: str) -> Text:
    if mean is None:
        return Text("-", style="dim")
    where = mean.where.removeprefix(f"{group.title}/")
    return Text(shape.format(mean.mean)).append(f"\nleast {shape.format(mean.least)}, {where}", "dim")
