"""Geometric means over groups of gradients: by operator and suite, and by kind of layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any, NamedTuple

from tvmconvgrad.bench.results.measurement import Column, Measurement

ALL = "all"


class Mean(NamedTuple):
    """A geometric mean, and the least of its terms with the layer that has it."""

    mean: float
    least: float
    where: str
    terms: int


@dataclass(frozen=True)
class Group:
    """One line of the summary."""

    title: str
    """A suite, a kind of layer, or all."""
    operator: str
    dtype: str
    count: int
    """Gradients in the group."""
    ratios: dict[str, Mean | None]
    """By the column's title; None where no gradient of the group has it."""
    share: Mean
    """Of the FMA peak."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON's types."""
        ratios = {title: mean and mean._asdict() for title, mean in self.ratios.items()}
        return {**asdict(self), "ratios": ratios, "share": self.share._asdict()}


def mean_of(found: Sequence[tuple[float, Measurement]]) -> Mean | None:
    """The geometric mean of positive numbers, each of which belongs to a gradient; None of none."""
    if not found:
        return None
    least, where = min(found, key=lambda entry: entry[0])
    return Mean(geometric_mean([value for value, _ in found]), least, name(where), len(found))


def name(measurement: Measurement) -> str:
    """How a layer is called where suites are mixed."""
    return f"{measurement.suite}/{measurement.layer}"


def summarise(measured: Sequence[Measurement], columns: Sequence[Column], peak: float) -> list[Group]:
    """The groups that have members: for each type and operator the suites, all, and some kinds of layers."""
    found = []
    for dtype in dict.fromkeys(entry.dtype for entry in measured):
        for operator in dict.fromkeys(entry.operator for entry in measured):
            mine = [entry for entry in measured if (entry.dtype, entry.operator) == (dtype, operator)]
            for title, members in _groups(mine).items():
                if members:
                    found.append(_group(title, members, columns, peak))
    return found


def _groups(measured: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The members of each group. With one suite alone, it is what all are."""
    suites = list(dict.fromkeys(entry.suite for entry in measured))
    groups = {suite: [entry for entry in measured if entry.suite == suite] for suite in suites if len(suites) > 1}
    return {
        **groups,
        ALL if len(suites) != 1 else suites[0]: list(measured),
        "depthwise layers": [entry for entry in measured if entry.is_depthwise],
        "stems": [entry for entry in measured if entry.is_stem],
        "dense, 64 channels and more": [entry for entry in measured if entry.is_wide],
    }


def _group(title: str, members: Sequence[Measurement], columns: Sequence[Column], peak: float) -> Group:
    ratios = {}
    for column in columns:
        found = [(entry.ratio(column.labels), entry) for entry in members]
        ratios[column.title] = mean_of([(ratio.median, entry) for ratio, entry in found if ratio is not None])
    share = mean_of([(entry.gflops / peak, entry) for entry in members])
    assert share is not None
    return Group(title, members[0].operator, members[0].dtype, len(members), ratios, share)
