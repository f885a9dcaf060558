"""Damage to files: bytes, JSON, and what lies in a file's place."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

RAW = {
    "@nan": "NaN", "@inf": "Infinity", "@minus": "-Infinity", "@float": "1e999", "@digits": "9" * 5000, "@zero": "-0",
    "@half": '"\\ud800"', "@deep": "[" * 20_000 + "]" * 20_000, "@dicts": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "@text": '"' + "x" * 5000 + '"', "@escape": '"\\u0000"',
}  # fmt: skip
"""What json.dumps does not write, by the words that stand for it."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, 1.0, "", "a", "../x", "0",
    "f16", "bf16", "NXC", "NCX", "XCO", "OCX", "llvm", "cuda -arch=sm_90", [], [1], [[]], [None], [0, 0], {}, {"": 0},
    {"a": {}}, *RAW,
)  # fmt: skip


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes that differ from `data`, as far as chance has it, in one to three places."""
    for _ in range(random.randint(1, 3)):
        data = _damaged_once(random, data)
    return data


def _damaged_once(random: Random, data: bytes) -> bytes:
    size = max(len(data), 1)
    begin, end = sorted((random.randrange(size), random.randrange(size) + 1))
    noise = random.randbytes(random.choice((1, 1, 2, 8, 300)))
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: data[:begin],
        lambda: data[end:],
        lambda: _flipped(random, data),
        lambda: data[:begin] + data[end:],
        lambda: data[:end] + data[begin:],
        lambda: data[:begin] + noise + data[begin:],
        lambda: data[:begin] + noise + data[begin + len(noise) :],
        lambda: data[:begin] + b"\0" * (end - begin) + data[end:],
        lambda: data + noise,
        lambda: _swapped(random, data),
        lambda: noise,
        lambda: b"",
    )
    return random.choices(changes, [2, 1, 12, 2, 2, 2, 4, 1, 1, 3, 0.3, 0.3])[0]()


def _flipped(random: Random, data: bytes) -> bytes:
    content = bytearray(data or b"\0")
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _swapped(random: Random, data: bytes) -> bytes:
    """Two pieces of one length change places."""
    content, size = bytearray(data), random.choice((1, 4, 16))
    if len(content) < 2 * size:
        return data[::-1]
    one, other = (random.randrange(len(content) - size) for _ in range(2))
    first, second = data[one : one + size], data[other : other + size]
    content[one : one + size], content[other : other + size] = second, first
    return bytes(content)


def damaged_json(random: Random, value: Any) -> Any:
    """A JSON value with one to three of its nodes replaced, removed, renamed, or in each other's place."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        holders = list(_holders(value))
        if not holders:
            return random.choice(VALUES)
        holder, key = random.choice(holders)
        _change(random, holder, key, holders)
    return value


def _change(random: Random, holder: Any, key: Any, holders: list[tuple[Any, Any]]) -> None:
    what = random.random()
    if what < 0.15 and isinstance(holder, dict):
        name = random.choice(["", "x", f"{key}s", str(key).upper()])
        holder[name] = holder.pop(key)
    elif what < 0.25:
        del holder[key]
    elif what < 0.4:
        other, place = random.choice(holders)
        holder[key] = copy.deepcopy(other[place])
    elif what < 0.45 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif what < 0.6 and type(holder[key]) is int:
        holder[key] += random.choice((-1, 1, 1, 7))
    elif what < 0.65 and isinstance(holder[key], str):
        holder[key] = damaged(random, holder[key].encode()).decode(errors="replace")
    else:
        holder[key] = copy.deepcopy(random.choice(VALUES))


def _holders(value: Any) -> Any:
    """Every place of a JSON value: what holds it, and under which key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _holders(inner)


def text_of(random: Random, value: Any) -> str:
    """JSON's text, with what json.dumps does not write; now and then a key is there twice."""
    text = json.dumps(value)
    for word, raw in RAW.items():
        text = text.replace(json.dumps(word), raw)
    if random.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1].split(", ", 1)[0] + ", " + text[1:]
    return text


def _folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def _link(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    """A file of a terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _secret(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


def _missing(path: Path) -> None:
    pass


def _endless(path: Path) -> None:
    path.symlink_to("/dev/full")


INSTEAD: tuple[Callable[[Path], None], ...] = (_folder, _link, _device, _huge, _secret, _missing, _endless, os.mkfifo)
"""What may lie where a file is expected."""


def put(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Let this, and nothing else, lie at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
