"""`report`: a table of the convolutions, and of who computes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvmconvgrad.frontends import reports
from tvmconvgrad.frontends.parts import layer_text
from tvmconvgrad.jax.handler import handler
from tvmconvgrad.jax.lowering import Lowered
from tvmconvgrad.jax.override import override


@dataclass(frozen=True)
class Row:
    """One convolution that JAX has lowered.

    `layer` names channels, kernel, batch and image, as in "conv2d 64->128 3x3, 8x56x56", or, if XLA computes it, the
    shapes of its arrays. `layout` is "NXC" or "NCX", `dtype` the type. `part` is "forward", "data gradient" or "weights
    gradient"; a transposed convolution's forward is a data gradient, and the other way round. `by` is "tvmconvgrad" or
    "XLA", and `why` says why it is XLA. `calls` counts the calls of our kernel, and `ms` are the milliseconds of the
    fastest one, None if there were none. Layers with equal kernels share both.
    """

    layer: str
    layout: str
    dtype: str
    part: str
    by: str
    calls: int
    ms: float | None
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's cells as text, in the order of the table's columns."""
        time = "" if self.ms is None else f"{self.ms:.3f}"
        return (self.layer, self.layout, self.dtype, self.part, self.by, str(self.calls), time, self.why)


class Report(reports.Report[Row]):
    """The convolutions' rows, and notes on what is in no row. `str(report)` is a table with the notes below it."""

    titles = ("layer", "layout", "type", "part", "by", "calls", "ms", "why")


def report() -> Report:
    """Which convolutions JAX has lowered under the present settings of `enable`, and who computes each.

    After `disable` those under the last settings. Print the report, or read its `rows`.
    """
    rows = sorted(map(_row, list(override.lowered.values())), key=lambda row: (row.layer, row.part))
    return Report(tuple(rows), tuple(_notes()))


def _row(found: Lowered) -> Row:
    conv, reading = found.conv, found.reading
    layer = f"{'x'.join(map(str, conv.lhs))} by {'x'.join(map(str, conv.rhs))}"
    layout = part = ""
    if reading is not None:
        layout, part = reading.data_format, reading.roles.part.value
    if found.problem is not None:
        one = found.problem.geometry
        numbers = {"stride": one.strides, "dilation": one.dilations}
        layer = layer_text(f"conv{conv.rank}d", (one.c, one.o), one.k, one.batch, one.x, numbers, one.groups)
    if found.number is None:
        return Row(layer, layout, conv.dtype, part, "XLA", 0, None, found.reason)
    return Row(layer, layout, conv.dtype, part, "tvmconvgrad", *handler().count(found.number), "")


def _notes() -> Iterator[str]:
    if override.settings is None:
        yield "not enabled: XLA computes everything"
