"""From whatever a caller passes to plain ints and strings, or an error that names the argument."""

from __future__ import annotations

import difflib
import operator
import os
import reprlib
from collections.abc import Collection, Mapping, Set
from dataclasses import fields
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias, cast

Ints: TypeAlias = "Collection[SupportsIndex]"
"""A list, a tuple, a 1-D array: what the operators take for s64[]."""

Shape: TypeAlias = tuple[int, ...]

S64_MAX = 2**63 - 1
MAX_SPATIAL_RANK = 3
_FEW = 3
MAX_RANK = MAX_SPATIAL_RANK + 2


class _Short(reprlib.Repr):
    """repr() that cuts off, and does not fail."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = 2 * MAX_RANK
        self.maxstring = self.maxother = 60
        self.maxlevel = 3

    def repr1(self, x: object, level: int) -> str:
        # reprlib goes by the name of a type alone, and any class may be called "list"
        return super().repr1(x, level) if type(x) in _SHOWN_IN_PART else self.repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        # repr() refuses ints of some thousand digits
        return repr(x) if x.bit_length() <= 128 else f"<int of {x.bit_length()} bits>"


_SHOWN_IN_PART = (tuple, list, dict, set, frozenset, str, int)
_SHORT = _Short()
_LONGEST = 400  # characters: lists of lists have many entries


def show(value: object) -> str:
    """Return `value` for a message: short, and on one line."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


def parse_int(name: str, value: object, *, low: int, within: object = None) -> int:
    """Return `value` as int of at least `low` (0 or 1) and at most 2**63 - 1.

    `within` is the sequence that `value` is an entry of, for the message. Raises TypeError for what is no int
    (also bool and float), ValueError outside of the range.
    """
    if type(value) is int and low <= value <= S64_MAX:
        return value
    got = f"{name}: got {show(value)}" if within is None else f"{name}: got {show(value)} in {show(within)}"
    try:
        number = None if _is_bool(value) else int(operator.index(cast(SupportsIndex, value)))
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{got} of type {type(value).__name__}, expected an int")
    if number < low:
        raise ValueError(f"{got}, expected a {'positive' if low else 'non-negative'} int")
    if number > S64_MAX:
        raise ValueError(f"{got}, expected at most 2**63 - 1 (s64)")
    return number


def parse_ints(name: str, value: object, *, low: int, most: int = MAX_RANK) -> Shape:
    """Return `value`, a sequence of at most `most` ints of at least `low` (0 or 1), as tuple of int.

    Lists, tuples, ranges and 1-D integer arrays of any library will do. Raises TypeError for anything else
    (also str, bytes, sets, mappings and generators), ValueError for entries out of range.
    """
    no_list = isinstance(value, (str, bytes, bytearray, memoryview, Mapping, Set, type))
    if no_list or not isinstance(value, Collection) or getattr(value, "ndim", 1) != 1:
        raise TypeError(f"{name}: expected a sequence of ints, got {show(value)} of type {type(value).__name__}")
    try:
        count = len(value)
    except OverflowError:  # range(10**30)
        count = S64_MAX
    if count > most:
        raise ValueError(f"{name}: {show(value)} has {count} entries, expected at most {most}")
    return tuple(parse_int(name, entry, low=low, within=value) for entry in value)


def parse_bool(name: str, value: object) -> bool:
    """Return `value` if it is a bool, Python's or another library's."""
    if isinstance(value, bool) or (_is_bool(value) and getattr(value, "ndim", None) == 0):
        return bool(value)
    raise TypeError(f"{name}: got {show(value)} of type {type(value).__name__}, expected a bool")


def parse_path(name: str, value: object) -> Path:
    """Return a path that the system can be asked for, whether or not there is something."""
    try:
        path = Path(plain(value) if isinstance(value, str) else cast(Path, value))
        if b"\0" not in os.fsencode(path):
            return path
    except TypeError:
        raise TypeError(f"{name}: got {show(value)} of type {type(value).__name__}, expected a path") from None
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name}: got {show(value)}, which cannot be a path")


def plain(text: str) -> str:
    """Return a str's characters as a str: what a subclass does to its methods is unknown."""
    return str.__str__(text)


def parse_choice(name: str, value: object, allowed: Collection[str]) -> str:
    """Return `value` if it is one of `allowed`, letter for letter."""
    expected = f"expected {' or '.join(repr(choice) for choice in allowed)}"
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {show(value)} of type {type(value).__name__}, {expected}")
    word = plain(value)
    if word not in allowed:
        hint = "; letter case matters" if word.upper() in allowed else nearest(word, allowed)
        raise ValueError(f"{name}: got {show(value)}, {expected}{hint}")
    return word


def check_count(name: str, values: Shape, count: int, reason: str) -> None:
    """Raise ValueError, with `reason`, where `values` has not `count` entries."""
    if len(values) != count:
        raise ValueError(f"{name}: {values} has {len(values)} entries, expected {count}, {reason}")


def counted(count: int, thing: str, things: str = "") -> str:
    """Return a number of things in words: "1 layer", "2 layers"."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def nearest(word: object, words: Collection[str]) -> str:
    """Return " (did you mean 'x'?)" for the one of `words` that is most like `word` in any letter case, or "".

    Words of a few letters are often like each other: there no more than one letter is missing or too many. What is no
    str is like none, and is not made one: that may fail.
    """
    if not isinstance(word, str):
        return ""
    folded = {each.lower(): each for each in words}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6 if len(word) > _FEW else 0.75)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""


def fields_of(record: object) -> dict[str, Any]:
    """A dataclass' fields as they are: dataclasses.asdict would copy each number of each shape."""
    return {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
