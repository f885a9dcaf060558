"""DLPack to the letter: versions, flags, and capsules that are not what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.layers import FILTERS, layer
from tests.support.cases.case import DTYPES, assert_same
from tests.support.memory.capsules import IS_COPIED, READ_ONLY, Producer, huge

NAMES = ("input_forward", "output_delta", "out")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", [None, (1, 0), (1, 3), (1, 99)])
@pytest.mark.parametrize("flags", [0, READ_ONLY, IS_COPIED, READ_ONLY | IS_COPIED, 4, 1 << 40])
def test_versions_and_flags(flags: int, version: Any, dtype: str) -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    given = [Producer(array, version=version, flags=flags) for array in inputs]
    assert_same(kernel(*given), want)
    assert all(one.asked[0]["max_version"] >= (1, 0) for one in given)
    out = Producer(np.zeros_like(want), version=version, flags=flags)
    if version is None:
        words = r"^out: is read-only: .* version 0"
    elif flags & READ_ONLY:
        words = r"^out: is read-only$"
    elif flags & IS_COPIED:
        words = r"^out: a Producer offers a copy through DLPack"
    else:
        assert kernel(*given, out=out) is out
        assert_same(out.array, want)
        assert out.asked[0]["copy"] is False
        return
    with pytest.raises(ValueError, match=words):
        kernel(*given, out=out)
    assert not out.array.any()


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"version": (2, 0)}, r"capsule is of DLPack's version 2\.0, expected version 1"),
        ({"version": (0, 8)}, r"capsule is of DLPack's version 0\.8"),
        ({"name": b"used_dltensor"}, "expected an unused capsule"),
        ({"name": b"used_dltensor_versioned"}, "expected an unused capsule"),
        ({"name": b"tensor"}, "expected an unused capsule"),
        ({"data": None}, "has no memory for the"),
        ({"data": None, "byte_offset": 64}, "has no memory for the"),
        ({"shape": None}, "4 axes and no shape"),
        ({"shape": huge(2, -5, 4, 3)}, "expected no negative sizes"),
        ({"shape": huge(2**62, 2**62, 2**62, 2**62)}, ""),
        ({"shape": huge(2**40, 5, 4, 3), "strides": huge(2**40, 1, 1, 1)}, "lead out of memory"),
        ({"strides": huge(2**62, 2**62, 1, 1)}, "lead out of memory"),
        ({"strides": huge(-(2**62), -(2**62), 1, 1)}, "lead out of memory"),
        ({"byte_offset": 2**63}, "lead out of memory"),
        ({"ndim": 0}, r"shape \(\) does not fit"),
        ({"ndim": -1}, "has -1 axes"),
        ({"ndim": 65}, "has 65 axes"),
        ({"ndim": 2**31 - 1}, "axes, expected 0 to 64"),
        ({"lanes": 4}, "in 4 lanes is not supported"),
        ({"lanes": 0}, "in 0 lanes is not supported"),
        ({"bits": 33}, "of 33 bits"),
        ({"bits": 0}, "of 0 bits"),
        ({"code": 5}, "type code 5"),
        ({"code": 255}, "type code 255"),
        ({"device_type": 2}, "device type 2"),
        ({"device_type": 8}, "device type 8"),
        ({"device_type": 0}, "device type 0"),
        ({"device": (2, 0)}, ""),
        ({"device": (-1, 0)}, "is on DLPack device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),  # pointers differ between processes
)
def test_odd_capsules(how: dict[str, Any], words: str, place: int) -> None:
    kernel, inputs, want = layer(FILTERS)
    given: list[Any] = [*inputs, np.zeros_like(want)]
    given[place] = Producer(given[place], **how)
    with pytest.raises(ValueError, match=rf"^{NAMES[place]}: .*{words}"):
        kernel(given[0], given[1], out=given[2] if place == 2 else None)
    assert not getattr(given[2], "array", given[2]).any()


def test_capsules_that_are_right_in_another_way() -> None:
    kernel, inputs, want = layer(FILTERS)
    first, second = inputs
    off = np.concatenate([np.full(3, 7, np.float32), first.ravel()])[3:]
    wide = Producer(first, data=off.ctypes.data - 12, byte_offset=12)
    assert_same(kernel(wide, second), want)
    assert_same(kernel(Producer(first, strides=None), Producer(second, version=None, strides=None)), want)
    for device in (3, 11, 13):
        assert_same(kernel(Producer(first, (device, 0), device_type=device), second), want)
    backwards = np.ascontiguousarray(first[::-1, ::-1])[::-1, ::-1]
    assert_same(kernel(Producer(backwards), second), want)
    empty = Producer(np.zeros((0, 5, 4, 3), np.float32), data=None)
    with pytest.raises(ValueError, match=r"^input_forward: shape \(0, 5, 4, 3\) does not fit"):
        kernel(empty, second)


class Older(Producer):
    """Written when DLPack had fewer options."""

    def __dlpack__(self, **options: Any) -> Any:
        if "copy" in options or ("max_version" in options and self.how.get("version", 0) is None):
            raise TypeError("unexpected keyword argument")
        return super().__dlpack__(**options)


def test_producers_of_other_times() -> None:
    kernel, inputs, want = layer(FILTERS)
    assert_same(kernel(Older(inputs[0], version=None), Older(inputs[1])), want)
    out = Older(np.zeros_like(want))
    kernel(*inputs, out=out)
    assert_same(out.array, want)
    with pytest.raises(ValueError, match=r"^out: is read-only: .* version 0"):
        kernel(*inputs, out=Older(np.zeros_like(want), version=None))


def test_a_shape_in_a_capsule() -> None:
    import tvmconvgrad as cg

    _, inputs, want = layer(FILTERS)
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    shape = np.array(want.shape, np.int32)
    assert_same(op(*inputs, Producer(shape)), want)
    assert_same(op(*inputs, Producer(shape, version=None, flags=READ_ONLY)), want)
    for how in ({"data": None}, {"ndim": 2**30}, {"lanes": 2}, {"bits": 64}, {"version": (2, 0)}, {"device_type": 2}):
        with pytest.raises((TypeError, ValueError), match=r"^filter_shape: "):
            op(*inputs, Producer(shape, **how))  # type: ignore[arg-type]
    for other in (shape.astype(np.int64), shape.astype(np.float32), shape[None], shape[:0]):
        with pytest.raises((TypeError, ValueError), match=r"^filter_shape: "):
            op(*inputs, other)


def test_array_api_strict() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    kernel, inputs, want = layer(FILTERS)
    first, second = (strict.asarray(array) for array in inputs)
    assert_same(kernel(first, second), want)
    out = strict.zeros(want.shape, dtype=strict.float32)
    assert kernel(first, second, out=out) is out
    assert_same(np.asarray(out), want)
    locked = np.zeros_like(want)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: is read-only"):
        kernel(first, second, out=strict.asarray(locked, copy=False))
    assert not locked.any()
