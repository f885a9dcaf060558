"""What the tests of the benchmark share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tvmconvgrad.bench.results.measurement import Measurement
from tvmconvgrad.layers import Layer, write_layers

TINY = [
    Layer(
        name="dense",
        batch=2,
        channels=4,
        filters=6,
        input_size=(7, 6),
        kernel=(3, 3),
        pads_begin=(1, 1),
        pads_end=(1, 1),
    ),
    Layer(
        name="up",
        op="ConvTranspose",
        batch=1,
        channels=4,
        filters=2,
        input_size=(4, 3),
        kernel=(2, 2),
        strides=(2, 2),
    ),
]


@pytest.fixture
def layers_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    write_layers(path, TINY)
    return path


def measurement(rounds: dict[str, list[float]], **changes: Any) -> Measurement:
    """By hand: 1 GFLOP on 100 MB."""
    fields: dict[str, Any] = {
        "suite": "net",
        "layer": "conv",
        "kind": "filters",
        "operator": "ConvolutionBackpropFilters",
        "dtype": "f32",
        "problem": "-",
        "flops": 10**9,
        "tensor_bytes": 10**8,
        "workspace_bytes": 10**8,
        "schedule": "-",
        "is_depthwise": False,
        "is_stem": False,
        "is_wide": True,
    }
    return Measurement(**{**fields, "rounds": rounds, **changes})
