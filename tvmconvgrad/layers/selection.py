"""The choice among gradients: of the layers of suites and of files, in which types and layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvmconvgrad.layers.files import read_layers
from tvmconvgrad.layers.layer import Layer, LayerGradient
from tvmconvgrad.layers.suites import SUITES, suite

Selection = list[tuple[str, LayerGradient]]
"""Gradients in order, each with the name of its suite."""


def select_gradients(
    names: Sequence[str | Layer],
    *,
    batch: int | None = None,
    dtypes: Sequence[str] | None = None,
    data_format: str = "NXC",
    filter_format: str | None = None,
    only: str | None = None,
    substring: str = "",
) -> Selection:
    """All gradients of the layers of suites (by name; "all"), of LAYERS files, and of layers themselves.

    `batch` and `dtypes` replace the layers' own, `only` is "filters" or "data", `substring` is in the layers' names.
    Raises ValueError or TypeError for an unknown suite, a file that is wrong, and where nothing is left.
    """
    found = [
        (name, gradient)
        for name, layer in _layers(names, batch)
        if substring in layer.name
        for dtype in ([layer.dtype] if dtypes is None else dtypes)
        for gradient in layer.gradients(data_format, filter_format, dtype)
        if only in (None, gradient.kind)
    ]
    if not found:
        where = ", ".join(name if isinstance(name, str) else name.name for name in names)
        raise ValueError(f"layer: no layer of {where} has {substring!r} in its name")
    return found


def _layers(names: Sequence[str | Layer], batch: int | None) -> Iterator[tuple[str, Layer]]:
    for name in SUITES if list(names) == ["all"] else names:
        if isinstance(name, Layer):
            yield "layers", name if batch is None else dataclasses.replace(name, batch=batch)
            continue
        path = Path(name)
        if path.suffix:
            for layer in read_layers(path):
                yield path.stem, layer if batch is None else dataclasses.replace(layer, batch=batch)
        else:
            for layer in suite(name, batch):
                yield name, layer
