"""Machine files: the numbers of a CPU or GPU that schedules are planned with, each with its source.

A machine file is JSON, in the folder `cpus` or `gpus`: `about`, what it is in words; `names`, the names by which a
target asks for it besides the file's own; `numbers`, each a `value` and its `source`: a manual, or the command that
measured it. A file with `like` takes the numbers that it lacks from that other file, which has all. The fields of
`CpuMachine` (cpu.py) and `GpuMachine` (gpu.py) say what each number is, and its unit. docs/targets.md says how to add
a file.

These files lie beside modules that a kernel's build imports, so their text is part of the cache's key
(cache/sources.py).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Number:
    """One number of a machine, and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class MachineFile:
    """What a file says, with the numbers of the file that it is like."""

    name: str
    about: str
    names: tuple[str, ...]
    numbers: Mapping[str, Number]

    @property
    def values(self) -> dict[str, Any]:
        """The numbers without their sources, by name."""
        return {name: number.value for name, number in self.numbers.items()}


@functools.cache
def machine_files(folder: Path) -> dict[str, MachineFile]:
    """All files of a folder, by their names. ValueError for one that is not as it must be."""
    parsed = {path.stem: _parsed(path) for path in sorted(folder.glob("*.json"))}
    return {name: _machine_file(name, parsed) for name in parsed}


@functools.lru_cache(maxsize=256)
def find(folder: Path, name: str | None) -> MachineFile | None:
    """The file of a machine, by the file's name or one of its `names`."""
    files = machine_files(folder)
    if name in files:
        return files[name]
    return next((file for file in files.values() if name in file.names), None)


def names(folder: Path) -> list[str]:
    """All names by which files of a folder are found."""
    return sorted(name for file in machine_files(folder).values() for name in (file.name, *file.names))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except json.JSONDecodeError as reason:
        raise ValueError(f"machine file {path.name} is not JSON: {reason}") from None
    return found


def _machine_file(name: str, parsed: Mapping[str, dict[str, Any]]) -> MachineFile:
    """ValueError if something in it is missing or has another type."""
    found = parsed[name]
    try:
        like = parsed[found["like"]]["numbers"] if "like" in found else {}
        every = {**like, **found["numbers"]}
        numbers = {key: Number(_number(each["value"]), str(each["source"])) for key, each in every.items()}
        return MachineFile(name, str(found["about"]), tuple(map(str, found["names"])), numbers)
    except (KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"machine file {name}.json lacks {reason}, or has it of another type") from None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise TypeError(f"a number of at least zero: {value!r}")
    return value
