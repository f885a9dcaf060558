"""Literal cases of other projects' test suites, read in place, and permuted into other layouts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cases import layouts
from tests.support.cases.case import ROLES, Call
from tests.support.cases.convolution import Array, Shape
from tests.support.oracles import data


@dataclass(frozen=True)
class Vector:
    """One case of a file; its numbers are read when it is run."""

    name: str
    case: dict[str, Any]

    @property
    def operator(self) -> str:
        return str(self.case["op"])

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.case["attrs"])

    @property
    def formats(self) -> tuple[str, str]:
        return self.attributes["data_format"], self.attributes["filter_format"]

    def axes(self, name: str) -> Shape:
        rank = len(self.attributes["strides"])
        return layouts.permutation(self.operator, name, *self.formats, rank)

    @property
    def call(self) -> Call:
        first, second = (tuple(entry["shape"]) for entry in self.case["inputs"])
        return Call(self.operator, self.attributes, (first, second))

    def inputs(self) -> list[Array]:
        return [_array(entry) for entry in self.case["inputs"]]

    def check(self, result: Array) -> None:
        """Judge a result: equality where the numbers are exact, else the tolerance that the case states."""
        expected = _array(self.case["expected"])
        assert result.shape == expected.shape
        if self.case.get("exact"):
            np.testing.assert_array_equal(result, expected)
        else:
            np.testing.assert_allclose(result, expected, rtol=self.case["rtol"], atol=self.case["atol"])

    def permuted(self, data_format: str, filter_format: str) -> Vector:
        """The same case in other layouts."""
        attributes = self.attributes | {"data_format": data_format, "filter_format": filter_format}
        other = Vector(f"{self.name} as {data_format} {filter_format}", {**self.case, "attrs": attributes})
        inputs, result = ROLES[self.operator]
        entries = zip(inputs, self.inputs(), strict=True)
        changed = [_entry(self._moved(array, name, other)) for name, array in entries]
        expected = self._moved(_array(self.case["expected"]), result, other)
        shape = {"w": "filter_shape", "x": "output_shape"}.get(result)
        if shape:
            attributes[shape] = expected.shape
        return Vector(other.name, {**other.case, "inputs": changed, "expected": _entry(expected)})

    def _moved(self, array: Array, name: str, other: Vector) -> Array:
        return layouts.from_canonical(layouts.to_canonical(array, self.axes(name)), other.axes(name))

    def __str__(self) -> str:
        return self.name


def vectors() -> list[Vector]:
    """All cases in the order of their files; none where the folder is missing."""
    files = sorted(Path(data.data_folder(), "vectors").glob("*.json"))
    return [
        Vector(f"{file.stem}: {case['name']} {case['op']}", case)
        for file in files
        for case in json.loads(file.read_text())["cases"]
    ]


def rotated(found: list[Vector]) -> list[Vector]:
    """Each case in one other pair of layouts; over the cases of an operator, all pairs get their turn."""
    turns = dict.fromkeys(ROLES, 0)
    changed = []
    for vector in found:
        formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(vector.operator)]
        others = [pair for pair in formats if pair != vector.formats]
        changed.append(vector.permuted(*others[turns[vector.operator] % len(others)]))
        turns[vector.operator] += 1
    return changed


def _array(entry: dict[str, Any]) -> Array:
    numbers, shape = entry["data"], tuple(entry["shape"])
    count = int(np.prod(shape))
    if isinstance(numbers, list):
        return np.array(numbers, np.float32).reshape(shape)
    if "full" in numbers:
        return np.full(shape, numbers["full"], np.float32)
    start, step = numbers["arange"]
    steps: Array = start + step * np.arange(count, dtype=np.float64)
    return steps.astype(np.float32).reshape(shape)


def _entry(array: Array) -> dict[str, Any]:
    return {"shape": array.shape, "data": array.ravel().tolist()}
