"""The choice among gradients and forwards: of the layers of suites and of files, in which types and layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tvmconvgrad.layers.files import read_layers
from tvmconvgrad.layers.layer import GRADIENTS, KINDS, Layer, LayerGradient
from tvmconvgrad.layers.suites import SUITES, suite
from tvmconvgrad.spec.values import parse_choice

Selection = list[tuple[str, LayerGradient]]
"""Gradients in order, each with the name of its suite."""


def select_gradients(
    names: Sequence[str | Layer],
    *,
    batch: int | None = None,
    dtypes: Sequence[str] | None = None,
    data_format: str = "NXC",
    filter_format: str | None = None,
    only: str | Collection[str] | None = None,
    substring: str = "",
) -> Selection:
    """All gradients of the layers of suites (by name; "all"), of LAYERS files, and of layers themselves.

    `batch` and `dtypes` replace the layers' own, `only` is one or several of "filters", "data" and "forward" (both
    gradients where it is not given), `substring` is in the layers' names. Raises ValueError or TypeError for an unknown
    suite or kind, a file that is wrong, and where nothing is left.
    """
    if not names:
        raise ValueError("layers: is empty, expected at least one")
    kinds = GRADIENTS if only is None else (only,) if isinstance(only, str) else tuple(only)
    for kind in kinds:
        parse_choice("only", kind, KINDS)
    found = [
        (name, gradient)
        for name, layer in _layers(names, batch)
        if substring in layer.name
        for dtype in ([layer.dtype] if dtypes is None else dtypes)
        for kind in kinds
        for gradient in [layer.select(kind, data_format, filter_format, dtype)]
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
