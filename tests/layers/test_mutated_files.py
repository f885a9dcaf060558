"""Files of layers that are no such thing: whatever one holds, it is read, or a ValueError says where it is wrong.

More of them: python -m tests.layers.test_mutated_files 10000
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvmconvgrad.layers import Layer, layers_text, read_layers

FIELDS = [field.name for field in dataclasses.fields(Layer)]
LAYERS = [
    Layer(name="one", batch=2, channels=4, filters=6, input_size=(7, 6), kernel=(3, 3), pads_begin=(1, 1)),
    Layer(name="up", op="ConvTranspose", batch=1, channels=4, filters=2, input_size=(4,), kernel=(2,), dtype="bf16"),
]
# as JSON and TOML both spell them
JUNK = [
    *("0", "-1", "1", "3", "true", "false", "1.0", "1e999", "-0.0", "9223372036854775807", "9223372036854775808"),
    *("9" * 5000, "[]", "[[]]", "[1]", "[0]", "[1, 2, 3, 4]", "[1, 2, 3, 4, 5, 6]", "[1.5, 2]", '["1", "2"]', "[true]"),
    *('""', '"f32"', '"f64"', '"Conv"', '"\\u0000"', '"a\\nb"', '"\\u001b[31m"', '"\u202e字😀"', f'"{"x" * 10000}"'),
    *("[" * 3000 + "]" * 3000, f"[{', '.join(['1'] * 10000)}]", "[9223372036854775807, 9223372036854775807]"),
]
JSON_JUNK = [
    *JUNK,
    "null",
    "NaN",
    "Infinity",
    "{}",
    '{"a": 1}',
    '{"a": 1, "a": 2}',
    '"\\ud800"',
    '{"a":' * 3000 + "1" + "}" * 3000,
]
TOML_JUNK = [
    *JUNK,
    "nan",
    "inf",
    "{}",
    "{ a = 1 }",
    "1979-05-27",
    "07:32:00",
    "0x" + "f" * 9000,
    "'''\n'''",
    "{a.b.c.d = 1}",
]
KEYS = ["batch", "bacth", "Kernel", "stride", "", "a" * 1000, "\x7f", "字", "layers", "__class__", "self", "name"]


class Mutated:
    """A file that was right, with one thing changed; `place` and `key` are where, if it is one value or key."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.suffix = self.random.choice([".json", ".toml"])
        self.place: int | None = None
        self.data = self.random.choice([self._value, self._key, self._twice, self._bytes, self._encoding])()

    def _value(self) -> bytes:
        self.place = self.random.randrange(len(LAYERS))
        key, junk = self.random.choice(FIELDS), self.random.choice(JSON_JUNK if self.suffix == ".json" else TOML_JUNK)
        return self._text(self.place, lambda entry: entry | {key: junk})

    def _key(self) -> bytes:
        self.place = self.random.randrange(len(LAYERS))
        old, new = self.random.choice(FIELDS), self.random.choice(KEYS)
        return self._text(self.place, lambda entry: {new if key == old else key: value for key, value in entry.items()})

    def _twice(self) -> bytes:
        key = self.random.choice(FIELDS)
        lines = self._text(0, lambda entry: entry).decode().splitlines()
        (place, line) = next((at, line) for at, line in enumerate(lines) if f"{key}" in line)
        lines.insert(place, line)
        return "\n".join(lines).encode()

    def _bytes(self) -> bytes:
        data = bytearray(layers_text(LAYERS, self.suffix).encode())
        for _ in range(self.random.choice([1, 1, 2, 10])):
            at = self.random.randrange(len(data))
            end = at + self.random.choice([0, 1, 1, 5, 100])
            data[at:end] = self.random.randbytes(self.random.choice([0, 1, 1, 2, 20]))
        return bytes(data[: self.random.choice([len(data), len(data), self.random.randrange(len(data) + 1)])])

    def _encoding(self) -> bytes:
        named = [dataclasses.replace(LAYERS[0], name="größe")]
        encoding = self.random.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "cp037"])
        return layers_text(named, self.suffix).encode(encoding)

    def _text(self, place: int, change: Callable[[dict[str, str]], dict[str, str]]) -> bytes:
        """The file, each value a text of its own, one of its entries changed."""
        entries = [{name: json.dumps(value) for name, value in dataclasses.asdict(layer).items()} for layer in LAYERS]
        entries[place] = change(entries[place])
        if self.suffix == ".json":
            lines = (",\n".join(f"{json.dumps(key)}: {value}" for key, value in entry.items()) for entry in entries)
            text = '{"layers": [{' + "}, {".join(lines) + "}]}"
        else:
            texts = ("\n".join(f"{json.dumps(key)} = {value}" for key, value in entry.items()) for entry in entries)
            text = "".join(f"[[layers]]\n{text}\n" for text in texts)
        return text.encode("utf-8", "surrogatepass")


def refused(seed: int, folder: Path) -> bool:
    """Whether a mutated file is refused, after a look at the words."""
    mutated = Mutated(seed)
    path = folder / f"mutated{mutated.suffix}"
    path.write_bytes(mutated.data)
    try:
        layers = read_layers(path)
    except ValueError as error:
        told = str(error)
        assert told.startswith(f"{path}: "), told
        assert told.isprintable() and len(told.removeprefix(str(path))) < 700, told
        about = told.removeprefix(f"{path}: ")
        if mutated.place is not None and not about.startswith(("is no JSON", "is no TOML")):
            assert about.startswith(f"layers[{mutated.place}]") or "has it already" in about, told
            assert any(f"{field}: " in about for field in (*FIELDS, *map(repr, KEYS), *KEYS)), told
        return True
    assert layers
    assert all(gradient.problem for layer in layers for gradient in layer.gradients())
    return False


def test_mutated_files(tmp_path: Path) -> None:
    count = 400
    assert count // 3 < sum(refused(seed, tmp_path) for seed in range(count)) < count


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"layers": [{"name": "a", "name": "b"}]}', "is no JSON: the key 'name' is there twice"),
        ("a.json", '{"layers": [{"batch": NaN}]}', "is no JSON: NaN is no number of JSON"),
        ("a.json", '{"layer": []}', "has the keys ['layer'] (did you mean 'layers'?), expected layers alone"),
        ("a.toml", "layers = 1\nlayers = 2", "is no TOML: "),
        ("a.toml", "[[layers]]\nname = 1979-05-27", "layers[0]: batch: missing"),
    ],
)
def test_words(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        read_layers(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: {words}")


def test_what_is_too_large_for_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    sizes: dict[str, Any] = {"batch": 2**40, "channels": 2**40, "filters": 1, "input_size": [2], "kernel": [1]}
    path.write_text(json.dumps({"layers": [{"name": "a", **sizes}]}))
    with pytest.raises(ValueError, match=r"a\.json: layers\[0\] \(a\): "):
        read_layers(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        total = int(sys.argv[1])
        print(f"{sum(refused(seed, Path(scratch)) for seed in range(total))} of {total} refused")
