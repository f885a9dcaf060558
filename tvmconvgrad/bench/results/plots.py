"""Pictures of a run, as PNG: for each suite the ratios as bars, and all gradients below the machine's roof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tvmconvgrad.bench.machine import Roof
from tvmconvgrad.bench.results.measurement import Column, Measurement
from tvmconvgrad.files.new_file import new_file
from tvmconvgrad.layers import KINDS

_COLOURS = (
    "#1f6f8b",
    "#c2571a",
    "#5b8c3e",
    "#7a4f9a",
    "#8a6d1d",
    "#a33b5e",
    "#3d6fb6",
    "#2f8f83",
    "#6b6b6b",
    "#b08d57",
)
_MARKERS = dict(zip(KINDS, "ov^", strict=True))
_INK, _QUIET = "#222222", "#9a9a9a"
_LONGEST = 10  # where longer bars end: they would make all others short
_INCHES_A_LAYER, _INCHES_BESIDES = 0.42, 1.5


def draw(measured: Sequence[Measurement], columns: Sequence[Column], roof: Roof, folder: Path) -> list[Path]:
    """Write the pictures into a folder, which is made where it is missing; returns their paths. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for dtype in dict.fromkeys(entry.dtype for entry in measured):
        mine = [entry for entry in measured if entry.dtype == dtype]
        if columns:
            for suite in dict.fromkeys(entry.suite for entry in mine):
                figure = _ratios(suite, [entry for entry in mine if entry.suite == suite], columns)
                paths.append(_written(figure, folder / f"ratios_{suite}_{dtype}.png"))
        paths.append(_written(_roofline(mine, roof), folder / f"roofline_{dtype}.png"))
    return paths


def _written(figure: Figure, path: Path) -> Path:
    with new_file(path) as file:
        figure.savefig(file, dpi=150, format="png")
    return path


def _ratios(suite: str, measured: Sequence[Measurement], columns: Sequence[Column]) -> Figure:
    kinds = [kind for kind in KINDS if any(entry.kind == kind for entry in measured)]
    layers = list(dict.fromkeys(entry.layer for entry in measured))
    height = _INCHES_BESIDES + _INCHES_A_LAYER * len(layers)
    figure = Figure(figsize=(5.5 * len(kinds) + 1, height), layout="constrained")
    figure.suptitle(f"{suite}, {measured[0].dtype}: the others' time by ours", color=_INK)
    panels = figure.subplots(1, len(kinds), squeeze=False, sharey=True, sharex=True)[0]
    for panel, kind in zip(panels, kinds, strict=True):
        _bars(panel, [entry for entry in measured if entry.kind == kind], layers, columns)
        panel.set_title(kind if kind == "forward" else f"{kind} gradient", color=_INK)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(columns), frameon=False)
    return figure


def _bars(panel: Axes, measured: Sequence[Measurement], layers: Sequence[str], columns: Sequence[Column]) -> None:
    """A bar for each layer and column, with the spread of its rounds; from 1 to the right ours is faster."""
    thickness = 0.8 / len(columns)
    for place, column in enumerate(columns):
        found = [(layers.index(entry.layer), entry.ratio(column.labels)) for entry in measured]
        known = [(at, ratio) for at, ratio in found if ratio is not None]
        heights = [at - 0.4 + (place + 0.5) * thickness for at, _ in known]
        widths = [ratio.median for _, ratio in known]
        spread = np.array([(r.median - r.least, r.greatest - r.median) for _, r in known]).reshape(-1, 2).T
        panel.barh(heights, widths, thickness * 0.9, color=_COLOURS[place % len(_COLOURS)], label=column.title)
        panel.errorbar(widths, heights, xerr=spread, fmt="none", ecolor=_INK, elinewidth=0.6)
    panel.axvline(1.0, color=_INK, linewidth=0.8)
    panel.set_yticks(range(len(layers)), layers)
    panel.set_ylim(len(layers) - 0.5, -0.5)
    panel.set_xlim(0, min(_LONGEST, panel.get_xlim()[1]))
    panel.grid(axis="x", color=_QUIET, linewidth=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _roofline(measured: Sequence[Measurement], roof: Roof) -> Figure:
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    panel = figure.subplots()
    suites = list(dict.fromkeys(entry.suite for entry in measured))
    kinds = list(dict.fromkeys(entry.kind for entry in measured))
    for place, suite in enumerate(suites):
        for kind in kinds:
            mine = [entry for entry in measured if (entry.suite, entry.kind) == (suite, kind)]
            panel.scatter(
                [entry.intensity for entry in mine],
                [entry.gflops for entry in mine],
                s=22,
                marker=_MARKERS[kind],
                color=_COLOURS[place % len(_COLOURS)],
                alpha=0.8,
                label=suite if kind == kinds[0] else None,
            )
    intensities = [entry.intensity for entry in measured]
    across = np.geomspace(min(intensities) / 2, max(*intensities, 2 * roof.gflops / roof.gigabytes) * 2, 200)
    panel.plot(across, [roof.attainable(float(x)) for x in across], color=_INK, linewidth=1)
    panel.set(xscale="log", yscale="log", xlabel="operations a byte of the inputs and the result", ylabel="GFLOP/s")
    about = f"FMA peak {roof.gflops:.0f} GFLOP/s, memory {roof.gigabytes:.0f} GB/s"
    panel.set_title(f"{measured[0].dtype}: ○ filters, ▽ data, △ forward; {about}", color=_INK, fontsize=10)
    panel.grid(which="both", color=_QUIET, linewidth=0.2)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return figure
