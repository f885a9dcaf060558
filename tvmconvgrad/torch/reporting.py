"""`report`: a table of the layers, of who computes them, and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tvmconvgrad.frontends import reports
from tvmconvgrad.torch.dispatch.override import others
from tvmconvgrad.torch.state import state
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.step import Step

_FIRST_STEP = "no kernels are built in a first step: warmup() builds them before"
_FURTHER_SIZE = "a further size of the input, which came a few times only"


@dataclass(frozen=True)
class Row:
    """One part of one layer.

    `layer` names kind, channels, kernel, batch and image, what is unusual among stride, padding, dilation,
    output_padding and groups, and the forward's bias, as in "conv2d 64->128 3x3, 8x56x56, padding 1x1, bias". `device`
    is "cpu", "cuda:0" or the like. `layout` is "contiguous" or "channels last", with a filter that lies otherwise, and
    inputs that are copied, as in "contiguous, input copied". `dtype` is "f32", "f16" or "bf16", or another that PyTorch
    computes. `part` is "forward", "data gradient" or "weights gradient". `by` is "tvmconvgrad" if our kernel computes
    it, else "PyTorch", also while the two are measured in turn; `why` says why. `calls` counts all calls. `ours_ms` and
    `theirs_ms` are the milliseconds of the fastest counted call of each; None where no call was counted.
    """

    layer: str
    device: str
    layout: str
    dtype: str
    part: str
    by: str
    calls: int
    ours_ms: float | None
    theirs_ms: float | None
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's cells as text, in the order of the table's columns."""
        times = ("" if ms is None else f"{ms:.3f}" for ms in (self.ours_ms, self.theirs_ms))
        return (
            *(self.layer, self.device, self.layout, self.dtype, self.part, self.by, str(self.calls)),
            *(*times, self.why),
        )


class Report(reports.Report[Row]):
    """The layers' rows, and notes on what is in no row. `str(report)` is a table with the notes below it."""

    titles = ("layer", "device", "layout", "type", "part", "by", "calls", "ours ms", "PyTorch ms", "why")


def report() -> Report:
    """Which layers were called, who computes each of their parts, how long it takes, and why it is PyTorch.

    There is a row for each part (forward, data gradient, weights gradient) of each layer. Layers with other shapes,
    numbers or types are other layers. All layers are listed that were called under the present settings of `enable`;
    after `disable` those under the last ones. Print the report, or read its `rows`.
    """
    return Report(tuple(_rows()), tuple(_notes()))


def _rows() -> Iterator[Row]:
    for layer in sorted(state.layers, key=lambda layer: str(layer.conv)):
        for step in layer.steps:
            if step.calls:
                ours, theirs = step.comparison.milliseconds
                why = _why(step)
                by = "PyTorch" if why else "tvmconvgrad"
                how = str(step.device.where), step.layout, layer.conv.dtype, step.part.value
                yield Row(layer.name, *how, by, step.calls, ours, theirs, why)


def _why(step: Step) -> str:
    """Why it is not, or not yet, our kernel that computes a part; "" if it is."""
    if step.reason:
        return step.reason
    is_there = step.build is not None and step.build.kernel is not None
    if torch.are_deterministic_algorithms_enabled() and is_there:
        return ""
    if step.comparison.is_ours is False:
        return "PyTorch's kernel is faster"
    if not is_there and step.build not in Build.pending and step.is_waiting:
        return _FURTHER_SIZE if step.first_step.is_over else _FIRST_STEP
    if not is_there:
        return "its kernel is being built"
    return "both compute in turn" if step.comparison.is_ours is None else ""


def _notes() -> Iterator[str]:
    for kind, count in sorted(state.foreign.items()):
        yield f"{count} call{'s' if count > 1 else ''} with a {kind}, which PyTorch computes: expected plain tensors"
    if state.settings is None:
        yield "not enabled: PyTorch computes everything"
        return
    yield from others()
