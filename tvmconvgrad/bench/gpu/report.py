"""The report as plain text: a line for each gradient as it comes, and the geometric means at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from tvmconvgrad.bench.gpu.run import COPY, FORMATS, Result
from tvmconvgrad.bench.results.measurement import Column, Measurement
from tvmconvgrad.bench.results.summary import Group, Mean, summarise

COLUMNS = [Column("cuDNN", tuple(FORMATS)), *(Column(label, (label,)) for label in (*FORMATS, COPY))]
"""Ratios of times, above 1 where ours is faster. The first is to the faster of both formats, the last
to a copy of the same number of bytes."""
HEAD = (
    f"{'kernel':<34}{'error':>9}{'us':>10}{'spread':>8}{'TFLOP/s':>9}{'peak':>6}  "
    + "".join(f"{column.title:>18}" for column in COLUMNS)
    + "  schedule"
)


def line(result: Result, peaks: Mapping[str, float]) -> str:
    """One gradient: its error, its time, and the ratios with their spread. `peaks` are GFLOP/s by type of products."""
    begin = f"{result.name:<34}{result.checked.error:>9.1e}"
    if result.checked.fault is not None:
        return f"{begin}  WRONG: {result.checked.fault}"
    if result.measured is None:
        return f"{begin}  right, in {result.checked.exact_in}; the same bits"
    found = result.measured
    times = found.rounds["ours"]
    spread = (max(times) - min(times)) / median(times)
    share = found.gflops / peaks[result.multiplied]
    ratios = "".join(f"{_ratio(found, column):>18}" for column in COLUMNS)
    numbers = f"{found.seconds * 1e6:>10.1f}{spread:>8.0%}{found.gflops / 1e3:>9.1f}{share:>6.0%}"
    return f"{begin}{numbers}  {ratios}  {found.schedule}"


def _ratio(found: Measurement, column: Column) -> str:
    ratio = found.ratio(column.labels)
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.least:.2f}-{ratio.greatest:.2f})"


def summaries(results: Sequence[Result], peaks: Mapping[str, float]) -> list[Group]:
    """The groups of each type of products, whose shares are of its own peak."""
    measured: dict[str, list[Measurement]] = {}
    for result in results:
        if result.measured is not None:
            measured.setdefault(result.multiplied, []).append(result.measured)
    return [
        replace(group, dtype=multiplied)
        for multiplied, mine in measured.items()
        for group in summarise(mine, COLUMNS, peaks[multiplied])
    ]


def table(groups: Sequence[Group]) -> str:
    """The geometric means, with the least of each and its layer."""
    titles = "".join(f"{column.title:>14}" for column in COLUMNS)
    lines = [f"{'geometric means':<44}{'type':<6}{titles}{'peak':>8}  least, beside the faster cuDNN"]
    for group in groups:
        name = f"{group.title} ({group.count}), {group.operator.removeprefix('Convolution')}"
        means = "".join(f"{_mean(group.ratios[column.title]):>14}" for column in COLUMNS)
        least = group.ratios[COLUMNS[0].title]
        where = "-" if least is None else f"{least.least:.2f} {least.where}"
        lines.append(f"{name:<44}{group.dtype:<6}{means}{group.share.mean:>8.0%}  {where}")
    return "\n".join(lines)


def _mean(mean: Mean | None) -> str:
    return "-" if mean is None else f"{mean.mean:.2f}"
