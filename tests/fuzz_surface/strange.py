"""Values that somebody may pass for an argument, most of them wrong."""

from __future__ import annotations

import collections
import io
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np


class Hurt(Exception):
    """What an object's own method raises: that one may come through, whatever the argument."""


class HurtByWords(Exception):
    """What repr() or str() of an object raises: a message about it must do without."""


def _raise(*_: Any, **__: Any) -> Any:
    raise Hurt("this object's own error")


def _wordless(*_: Any) -> str:
    raise HurtByWords("this object has no words")


METHODS = (
    "__index__", "__int__", "__float__", "__len__", "__iter__", "__next__", "__getitem__", "__eq__", "__hash__",
    "__bool__", "__contains__", "__array__", "__dlpack__", "__dlpack_device__", "__array_interface__", "__fspath__",
    "__getattr__", "__format__", "shape", "dtype", "ndim", "name",
)  # fmt: skip
"""What is asked of a value, one way or another."""


def hostile(random: Random) -> Any:
    """An object of which one to three methods raise, and that may have no words for itself."""
    names = random.sample(METHODS, random.randint(1, 3))
    content: dict[str, Any] = {name: property(_raise) if not name.startswith("__") else _raise for name in names}
    if random.random() < 0.5:
        content |= {"__repr__": _wordless, "__str__": _wordless}
    base = random.choice([object, object, int, str, float, list, tuple, dict, np.ndarray])
    kind = type(random.choice(["Hostile", "list", "dict", "array", "str", "set", "int"]), (base,), content)
    try:
        return np.zeros((2, 3), np.float32).view(kind) if base is np.ndarray else kind()
    except Exception:
        return object.__new__(type("Hostile", (), content))


def words(value: Any) -> str:
    """A value for the text of a fault, whatever it is."""
    try:
        text = f"{type(value).__name__} {value!r}"
    except BaseException as error:
        text = f"{type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) < 300 else f"{text[:300]}..."


class OwnInt(int):
    """A subclass of int."""


class OwnText(str):
    """A subclass of str, as enumerations of words are."""


class Unequal(str):
    """A str that equals nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


class OwnArray(np.ndarray):
    """A subclass of ndarray."""


class Index:
    """What is an int only by __index__."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value  # type: ignore[no-any-return]


class Export:
    """Something with DLPack's methods that answer nonsense."""

    def __init__(self, capsule: Any, device: Any = (1, 0)) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._device


def _endless() -> Iterator[int]:
    while True:
        yield 1


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _itself() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, -1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 1 << 20_000, True, False, 0.0, 1.0, 1.5, -0.0,
    math.nan, math.inf, 1e400, 1j, Fraction(3, 2), Fraction(1), np.int8(1), np.int64(2), np.uint64(2**64 - 1),
    np.float32(1), np.float64("nan"), np.bool_(True), np.complex64(1), np.datetime64("2020"), np.str_("f32"),
    np.void(b"abc"), ml_dtypes.bfloat16(1), OwnInt(1), OwnInt(-3), Index(1), Index(2**70), Index("1"), Index(None),
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "none", "None", "NONE", "valid", "same_upper", "SAME_LOWER", "same", "NXC", "nxc", "NCX", "XIO", "OIX",
    "IOX", "f32", "f64", "torch.float32", "<f4", ">f4", "bf16", "int8", "llvm", "cuda", "cuda -arch=sm_1", "llvm -",
    "llvm -mcpu=native -mcpu=native", "llvm -mcpu=", "llvm -mattr=+", "llvm -algorithm=fast", "rocm", "'", "llvm 'x",
    "llvm -mtriple=sparc-linux", "llvm -device=arm", "llvm -mcpu=zen5", "auto", "weights-o", "x" * 10_000, "\0", "a\0b",
    "\ud800", "\n", "é", "\u202e", "\uff11", "%s %d {} {0}", "../..", "/dev/null", "/dev/zero", "/proc/self/mem", "~",
    b"", b"f32", bytearray(b"llvm"), OwnText("valid"), OwnText("f32"), OwnText("llvm -mcpu=native"), Unequal("none"),
    Unequal("valid"), Unequal("NXC"), Unequal("f32"),
)  # fmt: skip


def _containers(random: Random) -> Any:
    entries = [random.choice(NUMBERS) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 5, 6)))]
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: entries,
        lambda: tuple(entries),
        lambda: [entries],
        lambda: [entries, entries],
        lambda: set(map(words, entries)),
        lambda: dict.fromkeys(map(words, entries)),
        lambda: iter(entries),
        lambda: (entry for entry in entries),
        lambda: collections.deque(entries),
        lambda: collections.UserList(entries),
        lambda: np.array(entries, object),
        lambda: range(random.choice((0, 1, 2, 3, 10**30))),
        lambda: [random.choice(TEXTS)] * len(entries),
        lambda: memoryview(b"\1\1"),
    )
    return random.choice(kinds)()


ODD_DTYPES = (
    np.float64, np.int32, np.int64, np.uint8, np.bool_, np.complex64, ">f4", ">f2", ">i4", "S3", "U3", "M8[s]", "V2",
    "V4", np.dtype([("a", "f4")]), np.dtype(("f4", (2,))), object, ml_dtypes.float8_e4m3fn, ml_dtypes.int4,
    np.dtype({"names": ["a"], "formats": ["f2"], "itemsize": 8}), np.longdouble, np.dtype([]),
)  # fmt: skip


def _arrays(random: Random) -> Any:
    shape = tuple(random.choice((0, 1, 1, 2, 3)) for _ in range(random.choice((0, 0, 1, 1, 2, 3, 4, 5, 6, 64))))
    dtype = random.choice([np.float32, np.float16, *ODD_DTYPES])
    array = np.zeros(shape if len(shape) < 7 else (1,) * 63, dtype)
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: array,
        lambda: array[()],
        lambda: array.view(OwnArray),
        lambda: np.ma.masked_array(array),
        lambda: np.broadcast_to(array, (2, *array.shape)) if array.ndim < 60 else array,
        lambda: array.tolist() if array.ndim < 7 else [],
        lambda: type(array),
        lambda: array.dtype,
        lambda: memoryview(array) if array.dtype.char in "fedlib" else array,
        lambda: np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**40, 1), (0, 0)),
    )
    return random.choice(kinds)()


def _others(random: Random) -> Any:
    others: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: ...,
        lambda: NotImplemented,
        object,
        lambda: int,
        lambda: _endless,
        _endless,
        _itself,
        lambda: _nested(random.choice((2, 20_000))),
        lambda: Path("nowhere"),
        lambda: io.BytesIO(b"abc"),
        lambda: SimpleNamespace(shape=(1, 2, 3), dtype="float32", ndim=3),
        lambda: SimpleNamespace(name="f32", dtype=np.zeros(2), shape=None),
        lambda: Export(random.choice([None, 1, b"", object()])),
        lambda: Export(None, random.choice([None, (2, 0), (1,), ("a", "b"), (1, 0, 0), 1, (10**30, 0)])),
        lambda: {"kind": random.choice([*NUMBERS, *TEXTS])},
        lambda: {random.choice(["mcpu", "mattr", "mtriple", "algorithm", "x", 1]): random.choice([*NUMBERS, *TEXTS])},
        lambda: {"kind": "llvm", "mattr": random.choice([["+fma"], [1], "+", ("-x",), {"a": 1}, _nested(3)])},
    )  # fmt: skip
    return random.choice(others)()


def strange(random: Random) -> Any:
    """Any value at all."""
    kinds: tuple[Callable[[Random], Any], ...] = (
        lambda random: random.choice(NUMBERS), lambda random: random.choice(TEXTS), hostile, _containers, _containers,
        _arrays, _others,
    )  # fmt: skip
    return random.choice(kinds)(random)
