"""Lists of layers in JSON and TOML files: {"layers": [{"name": ..., "batch": ...}, ...]}, in Layer's own words."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmconvgrad.files.new_file import write_text
from tvmconvgrad.files.regular_file import read_regular
from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.spec.values import nearest, show

SUFFIXES = (".json", ".toml")
_LONGEST = 60
_MOST = 1 << 28
"""Bytes of a file."""
_FIELDS = tuple(field.name for field in dataclasses.fields(Layer))
_REQUIRED = tuple(field.name for field in dataclasses.fields(Layer) if field.default is dataclasses.MISSING)


def read_layers(path: str | Path) -> list[Layer]:
    """The layers of a file, in its order; their names differ.

    Raises ValueError that names the file, the entry, the field, its value and the rule, whatever the file holds.
    """
    path = Path(path)
    entries = _entries(path, _parsed(path))
    layers = [_layer(f"{path}: layers[{place}]", entry) for place, entry in enumerate(entries)]
    names: dict[str, int] = {}
    for place, layer in enumerate(layers):
        if names.setdefault(layer.name, place) != place:
            first = f"layers[{names[layer.name]}] has it already, expected a name of its own"
            raise ValueError(f"{path}: layers[{place}]: name: {show(layer.name)}: {first}")
    return layers


def write_layers(path: str | Path, layers: Sequence[Layer]) -> None:
    """Write layers, all fields of each, in the format that the file's suffix names; OSError where that fails."""
    path = Path(path)
    write_text(path, layers_text(layers, _suffix(path)))


def layers_text(layers: Sequence[Layer], suffix: str) -> str:
    """What write_layers writes to a file of this suffix."""
    entries = [dataclasses.asdict(layer) for layer in layers]
    if suffix == ".json":
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
        return f'{{"layers": [\n{lines}\n]}}\n'
    return "\n".join(_toml_entry(entry) for entry in entries)


def _suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r}, expected {' or '.join(SUFFIXES)}")
    return path.suffix


def _parsed(path: Path) -> Any:
    suffix = _suffix(path)
    try:
        text = read_regular(path, _MOST).decode("utf-8")
        return _parsed_json(text) if suffix == ".json" else _parsed_toml(text)
    except OSError as reason:
        raise ValueError(f"{path}: cannot be read: {reason.strerror or reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"{path}: is no {suffix[1:].upper()}: {reason}") from reason


def _parsed_json(text: str) -> Any:
    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(given)
        if len(found) < len(given):
            twice = next(key for place, (key, _) in enumerate(given) if key in dict(given[:place]))
            raise ValueError(f"the key {show(twice)} is there twice in one object")
        return found

    def constant(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)


def _parsed_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _entries(path: Path, content: Any) -> list[Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds {show(content)}, expected an object with the key layers")
    if list(content) != ["layers"]:
        close = next((hint for key in content if key != "layers" and (hint := nearest(key, ["layers"]))), "")
        raise ValueError(f"{path}: has the keys {show(sorted(content))}{close}, expected layers alone")
    entries = content["layers"]
    if not isinstance(entries, list):
        raise ValueError(f"{path}: layers: got {show(entries)} of type {type(entries).__name__}, expected a list")
    if not entries:
        raise ValueError(f"{path}: layers: is empty, expected at least one layer")
    return entries


def _layer(about: str, entry: Any) -> Layer:
    if not isinstance(entry, dict):
        raise ValueError(f"{about}: got {show(entry)} of type {type(entry).__name__}, expected an object")
    if isinstance(entry.get("name"), str):
        about = f"{about} ({_word(entry['name'])})"
    for field in entry:
        if field not in _FIELDS:
            close = nearest(field, _FIELDS)
            raise ValueError(f"{about}: {_word(field)}: unknown{close}, expected one of {', '.join(_FIELDS)}")
    for field in _REQUIRED:
        if field not in entry:
            raise ValueError(f"{about}: {field}: missing; {', '.join(_REQUIRED)} are required")
    try:
        layer = Layer(**entry)
        for gradient in layer.gradients():
            _ = gradient.problem  # what is too large is noticed here
    except (TypeError, ValueError) as reason:
        raise ValueError(f"{about}: {reason}") from reason
    return layer


def _word(text: str) -> str:
    """A name for a message: as it is where that is short and printable."""
    return text if text.isprintable() and len(text) <= _LONGEST else show(text)


def _toml_entry(entry: dict[str, Any]) -> str:
    # JSON's text of a printable string, an int and a list of ints is TOML's too
    lines = (
        f"{name} = {json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}"
        for name, value in entry.items()
    )
    return "\n".join(["[[layers]]", *lines, ""])
