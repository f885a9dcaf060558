"""Which gradients are meant by names of suites and files, layers themselves, and what narrows them down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tvmconvgrad.deploy.describing import name_all
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


def test_forwards_are_chosen_by_name() -> None:
    assert [(one.layer.name, one.kind) for _, one in select_gradients(LAYERS, only=("filters", "forward"))] == [
        (name, kind) for name in ("one 1x1", "two 3x3") for kind in ("filters", "forward")
    ]
    [(_, forward)] = select_gradients(LAYERS[1:], only="forward")
    assert forward.problem.output_shape == (2, 3, 4)
    with pytest.raises(ValueError, match="only: got 'backward', expected 'filters' or 'data' or 'forward'"):
        select_gradients(LAYERS, only=("data", "backward"))


def test_each_layer_has_a_type_unless_one_is_asked_for(tmp_path: Path) -> None:
    mixed = [LAYERS[0], replace(LAYERS[1], dtype="bf16"), replace(LAYERS[1], name="three", dtype="f16")]
    write_layers(tmp_path / "mixed.json", mixed)
    found = select_gradients([str(tmp_path / "mixed.json")])
    assert [(one.kind, one.problem.dtype) for _, one in found] == [
        (kind, dtype) for dtype in ("f32", "bf16", "f16") for kind in ("filters", "data")
    ]
    asked = select_gradients(mixed, dtypes=("f16", "f32"), only="data")
    assert [one.problem.dtype for _, one in asked] == ["f16", "f32"] * 3
    names = [wanted.name for wanted in name_all("mixed", [one for _, one in found])]
    assert names[::2] == ["one_1x1_filters", "two_3x3_filters", "three_filters"]
    assert [wanted.name for wanted in name_all("mixed", [one for _, one in asked])][:2] == [
        "one_1x1_f16_data",
        "one_1x1_f32_data",
    ]


def test_where_nothing_is_left() -> None:
    with pytest.raises(ValueError, match="layers: is empty"):
        select_gradients([])
    with pytest.raises(ValueError, match="layer: no layer of one 1x1, two 3x3 has 'five' in its name"):
        select_gradients(LAYERS, substring="five")
