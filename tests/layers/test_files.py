"""Files of layers: there and back in both formats, and the words for what is wrong in one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tvmconvgrad.layers import SUITES, Layer, read_layers, suite, write_layers

LAYER = '"name": "a", "batch": 1, "channels": 2, "filters": 3, "input_size": [4], "kernel": [1]'
TOML = """
[[layers]]
name = "a"  # the least that a layer has
batch = 1
channels = 2
filters = 3
input_size = [4]
kernel = [1]
"""
EXPECTED = [Layer(name="a", batch=1, channels=2, filters=3, input_size=(4,), kernel=(1,))]


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_there_and_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"layers{suffix}"
    for name in SUITES:
        write_layers(path, suite(name))
        assert read_layers(path) == suite(name)


@pytest.mark.parametrize(("name", "count"), [("other_networks", 45), ("odd_sizes", 44)])
def test_the_lists_beside_the_benchmarks_have_layers_of_their_own(name: str, count: int) -> None:
    layers = read_layers(Path(__file__).parents[2] / "benchmarks" / "layers" / f"{name}.json")
    assert len(layers) == count
    suites = {replace(layer, name="any") for name in SUITES for layer in suite(name)}
    assert not suites & {replace(layer, name="any") for layer in layers}
    assert all(gradient.problem.flops for layer in layers for gradient in layer.gradients())


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_any_printable_name(suffix: str, tmp_path: Path) -> None:
    layers = [Layer(name='"è" \\ 字 😀', batch=1, channels=2, filters=3, input_size=(4,), kernel=(1,))]
    write_layers(tmp_path / f"layers{suffix}", layers)
    assert read_layers(tmp_path / f"layers{suffix}") == layers


def test_as_one_writes_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"layers": [{{{LAYER}}}]}}')
    (tmp_path / "a.toml").write_text(TOML)
    assert read_layers(tmp_path / "a.json") == read_layers(str(tmp_path / "a.toml")) == EXPECTED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON: "),
        ("[" * 100000, "is no JSON: "),
        ("[]", "holds [], expected an object with the key layers"),
        ("{}", "has the keys [], expected layers alone"),
        ('{"layers": [], "more": 1}', "has the keys ['layers', 'more'], expected layers alone"),
        ('{"layers": {}}', "layers: got {} of type dict, expected a list"),
        ('{"layers": []}', "layers: is empty"),
        ('{"layers": [1]}', "layers[0]: got 1 of type int, expected an object"),
        (f'{{"layers": [{{{LAYER}, "stride": [1]}}]}}', "layers[0] (a): stride: unknown (did you mean"),
        ('{"layers": [{"name": "a"}]}', "layers[0] (a): batch: missing; name, batch, channels"),
        (f'{{"layers": [{{{LAYER}, "groups": 4}}]}}', "layers[0] (a): channels: 2 is no multiple of"),
        (f'{{"layers": [{{{LAYER}, "groups": "4"}}]}}', "layers[0] (a): groups: got '4' of type str"),
        (f'{{"layers": [{{{LAYER}}}, {{{LAYER}}}]}}', "layers[1]: name: 'a': layers[0] has it already"),
    ],
)
def test_what_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_layers(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("layers =")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name, words in (
        ("a.toml", "is no TOML"),
        ("bytes.json", "is no JSON"),
        ("missing.json", "cannot be read: No such file"),
        ("a.yaml", "suffix '.yaml', expected .json or .toml"),
    ):
        with pytest.raises(ValueError, match=words):
            read_layers(tmp_path / name)


def test_json_has_all_fields(tmp_path: Path) -> None:
    write_layers(tmp_path / "a.json", EXPECTED)
    (entry,) = json.loads((tmp_path / "a.json").read_text())["layers"]
    assert set(entry) == set(Layer.__dataclass_fields__)
