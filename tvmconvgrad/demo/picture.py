"""The demonstration in one picture: the photograph before and after, and the filter as it was and as it was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tvmconvgrad.demo.deblurring import Deblurring
from tvmconvgrad.demo.scene import Array

_INK, _QUIET, _FILTER_LINE, _IMAGE_LINE = "#222222", "#6b6b6b", "#1f6f8b", "#c2571a"
_DETAIL = (slice(60, 320), slice(120, 380))
"""Rows and columns of the face: the whole photograph would be too small to see the blur."""


def draw(result: Deblurring, file: BinaryIO) -> None:
    """Write the picture as PNG. OSError when it cannot be written."""
    figure = Figure(figsize=(12, 8.6), dpi=100, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    figure.suptitle("A blur, found and undone by convolution gradients", fontsize=17, color=_INK)
    axes = figure.subplots(2, 3, height_ratios=(1.25, 1))
    _photographs(axes[0], result)
    _filters(axes[1, :2], result)
    _errors(axes[1, 2], result)
    figure.savefig(file, format="png")


def _photographs(axes: Sequence[Axes], result: Deblurring) -> None:
    rows, columns = (size // 2 for size in result.filter.shape[:2])
    border = [(0, 0), (rows, rows), (columns, columns), (0, 0)]
    blurred = np.pad(result.blurred, border)
    left = 100 * result.image_errors[-1]
    _photograph(axes[0], result.image, "Photograph", "as it was; sharpening never sees it")
    _photograph(axes[1], blurred, "Blurred", "by the filter below, kept in 8 bits")
    caption = f"with the found filter; {left:.0f} % of the blur's error is left"
    _photograph(axes[2], result.sharpened, "Sharpened", caption)


def _photograph(axis: Axes, image: Array, title: str, caption: str) -> None:
    axis.imshow(np.moveaxis(image[..., 0], 0, -1)[_DETAIL], interpolation="nearest")
    _label(axis, title, caption)


def _filters(axes: Sequence[Axes], result: Deblurring) -> None:
    error = 100 * result.filter_errors[-1]
    _filter(axes[0], result.filter, result, "Filter", "the path of a camera that shook")
    _filter(axes[1], result.found, result, "Found filter", f"from the two photographs above; error {error:.2g} %")


def _filter(axis: Axes, filter_: Array, result: Deblurring, title: str, caption: str) -> None:
    taps = filter_[:, :, 0, 0]
    darkest = float(result.filter.max())
    axis.imshow(taps, cmap="Greys", vmin=0, vmax=1.15 * darkest)
    for (row, column), value in np.ndenumerate(taps):
        color = "white" if value > 0.5 * darkest else _INK
        axis.text(column, row, f"{round(float(value), 3) + 0:.3f}", ha="center", va="center", fontsize=9, color=color)
    _label(axis, title, caption)


def _errors(axis: Axes, result: Deblurring) -> None:
    for errors, color, name in (
        (result.image_errors, _IMAGE_LINE, "photograph"),
        (result.filter_errors, _FILTER_LINE, "filter"),
    ):
        axis.semilogy(range(1, len(errors) + 1), errors, color=color, linewidth=2)
        axis.annotate(name, (len(errors), errors[-1]), (6, 6), textcoords="offset points", color=color, fontsize=10)
    axis.set_xlim(0, 1.22 * max(len(result.filter_errors), len(result.image_errors)))
    axis.grid(color="#e4e4e4", which="major")
    axis.yaxis.tick_right()
    axis.spines[["top", "left"]].set_visible(False)
    axis.tick_params(colors=_QUIET, labelsize=9)
    axis.set_title("Relative error", loc="left", fontsize=13, color=_INK)
    axis.set_xlabel("step of the descent", fontsize=10, color=_QUIET)


def _label(axis: Axes, title: str, caption: str) -> None:
    axis.set_title(title, loc="left", fontsize=13, color=_INK)
    axis.set_xlabel(caption, loc="left", fontsize=10, color=_QUIET)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color("#cccccc")
    axis.set_anchor("W")
