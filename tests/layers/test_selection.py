"""Which gradients are meant by names of suites and files, layers themselves, and what narrows them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvmconvgrad.layers import SUITES, Layer, select_gradients, suite, write_layers

LAYERS = [
    Layer(name="one 1x1", batch=2, channels=3, filters=4, input_size=(5,), kernel=(1,)),
    Layer(name="two 3x3", batch=2, channels=3, filters=4, input_size=(5,), kernel=(3,)),
]


def test_suites_files_and_layers_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_layers(tmp_path / "mine.toml", LAYERS)
    found = select_gradients(["stem", str(tmp_path / "mine.toml"), LAYERS[1]])
    assert list(dict.fromkeys(name for name, _ in found)) == ["stem", "mine", "layers"]
    assert [gradient.layer for _, gradient in found][::2] == [*suite("stem"), *LAYERS, LAYERS[1]]
    assert {name for name, _ in select_gradients(["all"])} == set(SUITES)


def test_what_narrows_them_down() -> None:
    found = select_gradients(LAYERS, batch=7, dtypes=("f16", "f32"), data_format="NCX", only="data", substring="3x3")
    assert [(one.layer.name, one.layer.batch, one.kind, one.dtype) for _, one in found] == [
        ("two 3x3", 7, "data", "f16"),
        ("two 3x3", 7, "data", "f32"),
    ]
    assert found[0][1].problem.input_shapes == ((7, 4, 3), (4, 3, 3))  # NCX, and OIX beside it
    assert select_gradients(LAYERS, filter_format="OIX")[0][1].problem.output_shape == (4, 3, 1)


def test_where_nothing_is_left() -> None:
    with pytest.raises(ValueError, match="layer: no layer of one 1x1, two 3x3 has 'five' in its name"):
        select_gradients(LAYERS, substring="five")
