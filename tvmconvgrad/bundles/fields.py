"""Checks of values that come out of JSON: what is not as expected is a BundleError that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.nvidia import tensor_maps
from tvmconvgrad.nvidia.launches import TENSORS
from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.spec.values import S64_MAX, Shape, show

Parser = Callable[[str, object], Any]
_Value = TypeVar("_Value")
_LONGEST = 1000
_JSON = {dict: "an object", list: "a list", str: "a string", int: "an int"}


def of_type(about: str, value: object, kind: type[_Value]) -> _Value:
    """The value, which must be of this very type."""
    if type(value) is not kind:
        raise BundleError(f"{about}: got {show(value)} of type {type(value).__name__}, expected {_JSON[kind]}")
    return value


def record(about: str, value: object, kind: type[Any], parsers: Mapping[str, Parser]) -> Any:
    """An object with these very fields as a dataclass."""
    content = of_type(about, value, dict)
    prefix = f"{about}." if about else ""
    for name in content:
        if name not in parsers:
            raise BundleError(f"{prefix}{show(name)}: unknown, expected {', '.join(parsers)}")
    for name in parsers:
        if name not in content:
            raise BundleError(f"{prefix}{name}: missing")
    return kind(**{name: parse(f"{prefix}{name}", content[name]) for name, parse in parsers.items()})


def mapping(about: str, value: object, parse: Callable[[str, object], _Value]) -> dict[str, _Value]:
    """An object whose values are all of one kind."""
    content: dict[str, object] = of_type(about, value, dict)
    return {name: parse(f"{about}.{show(name)}", entry) for name, entry in content.items()}


def text(about: str, value: object) -> str:
    """A string."""
    return of_type(about, value, str)


def line(about: str, value: object) -> str:
    """A short string, as messages have it in full."""
    found = text(about, value)
    if len(found) > _LONGEST or not found.isprintable():
        raise BundleError(f"{about}: {show(value)} is no line of at most {_LONGEST} characters")
    return found


def word(about: str, value: object) -> str:
    """An identifier of C."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,254}", text(about, value), re.ASCII):
        raise BundleError(f"{about}: {show(value)} is no identifier")
    return str(value)


def file_name(about: str, value: object) -> str:
    """The plain name of a file beside the manifest: no way leads out of the folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", text(about, value), re.ASCII):
        raise BundleError(f"{about}: {show(value)} is no plain name of a file in the bundle's folder")
    return str(value)


def digest(about: str, value: object) -> str:
    """A SHA-256 in hexadecimal."""
    if not re.fullmatch(r"[0-9a-f]{64}", text(about, value)):
        raise BundleError(f"{about}: {show(value)} is no SHA-256 of 64 hexadecimal digits")
    return str(value)


def flag(about: str, value: object) -> bool:
    """True or false."""
    return of_type(about, value, bool)


def count(about: str, value: object) -> int:
    """A number from 0 to 2**63 - 1."""
    number = of_type(about, value, int)
    if not 0 <= number <= S64_MAX:
        raise BundleError(f"{about}: {show(number)} is not from 0 to 2**63 - 1")
    return number


def sizes(about: str, value: object) -> Shape:
    """A list of counts."""
    return tuple(count(about, entry) for entry in of_type(about, value, list))


def extent(about: str, value: object) -> Shape:
    """Three counts from 1: what a GPU's function is launched with."""
    found = sizes(about, value)
    if len(found) != 3 or min(found) < 1:
        raise BundleError(f"{about}: got {show(value)}, expected three ints from 1")
    return found


def arguments(about: str, value: object) -> tuple[Any, ...]:
    """What a GPU's function is passed: tensors by name, places in the workspace, or maps of one of these."""
    found = of_type(about, value, list)
    return tuple(_argument(f"{about}[{place}]", entry) for place, entry in enumerate(found))


def _argument(about: str, value: object) -> Any:
    return record(about, value, TensorMap, _MAP) if isinstance(value, dict) else _place(about, value)


def _place(about: str, value: object) -> Any:
    return value if value in TENSORS else count(about, value)


def _dtype(about: str, value: object) -> str:
    if text(about, value) not in tensor_maps.DTYPES:
        raise BundleError(f"{about}: got {show(value)}, expected one of {', '.join(tensor_maps.DTYPES)}")
    return str(value)


def _line(about: str, value: object) -> int:
    line = of_type(about, value, int)
    if line not in tensor_maps.SWIZZLES:
        raise BundleError(f"{about}: got {line}, expected one of {', '.join(map(str, tensor_maps.SWIZZLES))}")
    return line


def _corners(about: str, value: object) -> tuple[tuple[int, ...], ...]:
    pairs = [[of_type(about, each, int) for each in of_type(about, pair, list)] for pair in of_type(about, value, list)]
    if any(len(pair) != 2 for pair in pairs):
        raise BundleError(f"{about}: got {show(value)}, expected pairs of ints")
    return tuple(map(tuple, pairs))


def texts(about: str, value: object) -> tuple[str, ...]:
    """A list of strings."""
    return tuple(text(about, entry) for entry in of_type(about, value, list))


def attributes(about: str, value: object) -> dict[str, Any]:
    """An operator's attributes by name: a string, an int, or a list of ints; the operator checks the rest."""
    parsed: dict[str, Any] = {}
    for name, entry in of_type(about, value, dict).items():
        at = f"{about}.{word(about, name)}"
        parsed[name] = sizes(at, entry) if isinstance(entry, list) else entry
        if not isinstance(entry, (str, int, list)):
            raise BundleError(f"{at}: got {show(entry)}, expected a string, an int or a list of ints")
    return parsed


_MAP: dict[str, Parser] = {
    "tensor": _place,
    "dtype": _dtype,
    "sizes": sizes,
    "box": sizes,
    "line_bytes": _line,
    "corners": _corners,
    "steps": sizes,
}
