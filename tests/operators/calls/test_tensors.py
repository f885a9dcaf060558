"""What comes in and goes out: arrays of any strides and alignment, PyTorch tensors, DLPack, `out`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.cases.layouts import to_canonical
from tests.support.oracles import reference

CONV = Convolution(2, 1, 5, 6, (7, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
FILTERS, DATA = Case("ConvolutionBackpropFilters", CONV), Case("ConvolutionBackpropData", CONV)
CASES = pytest.mark.parametrize("case", [FILTERS, DATA], ids=["filters", "data"])


def unaligned(array: Array, offset: int) -> Array:
    """A copy whose memory begins `offset` bytes after a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    copy: Array = np.frombuffer(memory, np.uint8, array.nbytes, begin).view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % 64 == offset % 64
    return copy


def sliced(array: Array) -> Array:
    """A copy in every second element of every axis of a larger array full of NaN."""
    larger = np.full([2 * size + 1 for size in array.shape], np.nan, array.dtype)
    copy: Array = larger[tuple(slice(1, None, 2) for _ in array.shape)]
    copy[...] = array
    return copy


def reversed_axes(array: Array) -> Array:
    everywhere = tuple(slice(None, None, -1) for _ in array.shape)
    copy: Array = np.ascontiguousarray(array[everywhere])[everywhere]
    return copy


def read_only(array: Array) -> Array:
    copy: Array = array.copy()
    copy.flags.writeable = False
    return copy


def shifted(offset: int) -> Callable[[Array], Array]:
    return lambda array: unaligned(array, offset)


class Sub(np.ndarray[Any, np.dtype[Any]]):
    """A subclass of which nothing is known."""


FORMS: dict[str, Callable[[Array], Array]] = {
    **{f"{offset} bytes off": shifted(offset) for offset in (4, 8, 12, 16, 20, 32)},
    **{f"{offset} bytes off, not at an element": shifted(offset) for offset in (1, 2, 3)},
    "sliced": sliced,
    "reversed": reversed_axes,
    "Fortran's order": np.asfortranarray,
    "transposed": lambda array: np.ascontiguousarray(array.transpose(1, 0, 3, 2)).transpose(1, 0, 3, 2),
    "read-only": read_only,
    "a view of a subclass": lambda array: array.view(Sub),
}


def expected(case: Case, inputs: list[Array]) -> Array:
    """The result in the case's layouts."""
    pairs = zip(case.inputs, inputs, strict=True)
    tensors = {name: to_canonical(np.asarray(array), case.axes(name)) for name, array in pairs}
    result = reference.gradient(case.convolution, case.result, tensors)
    want: Array = result.transpose(case.axes(case.result)).astype(DTYPES[case.dtype])
    return want


def operator(case: Case) -> Any:
    return getattr(cg, case.operator)(**case.attributes)


def arrays(case: Case) -> list[Array]:
    return case.arrays(operands(case.convolution, case.result))


@CASES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_any_form(form: str, dtype: str, case: Case) -> None:
    case = case.with_dtype(dtype)
    plain = arrays(case)
    for which in ((0,), (1,), (0, 1)):
        inputs = [FORMS[form](array) if i in which else array for i, array in enumerate(plain)]
        before = [array.tobytes() for array in inputs]
        assert_same(operator(case)(*inputs), expected(case, plain))
        assert [array.tobytes() for array in inputs] == before


@CASES
def test_an_input_that_repeats_one_element(case: Case) -> None:
    first, second = arrays(case)
    ones = np.broadcast_to(np.float32(1), first.shape)
    assert_same(operator(case)(ones, second), expected(case, [ones, second]))


@CASES
def test_one_array_twice(case: Case) -> None:
    conv = Convolution(1, 1, 4, 4, (3, 3), (3, 3), (1, 3), (1, 1), (1, 1), (0, 1), (0, 1))
    same = Case(case.operator, conv, "NXC", "XIO")
    shared = np.arange(48, dtype=np.float32)
    inputs: list[Array] = [shared[: prod(same.shape(name))].reshape(same.shape(name)) for name in same.inputs]
    assert np.shares_memory(inputs[0], inputs[1])
    assert_same(operator(same)(*inputs), expected(same, inputs))


@CASES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "read-only"])
def test_out_of_any_form(form: str, dtype: str, case: Case) -> None:
    case = case.with_dtype(dtype)
    inputs = arrays(case)
    out = FORMS[form](np.full(case.shape(case.result), 7, DTYPES[dtype]))
    around = out.base.copy() if form == "sliced" and out.base is not None else None
    assert operator(case)(*inputs, out=out) is out
    assert_same(np.asarray(out), expected(case, inputs))
    if around is not None:  # what lies between the elements is untouched
        assert out.base is not None
        written = np.argwhere(out.base.view(f"u{DTYPES[dtype].itemsize}") != around.view(f"u{DTYPES[dtype].itemsize}"))
        assert (written % 2 == 1).all()


@CASES
def test_out_that_shares_memory_with_an_input(case: Case) -> None:
    conv = Convolution(1, 1, 4, 4, (6, 6), (6, 6), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    same = Case(case.operator, conv)
    inputs = arrays(same)
    want, size = expected(same, inputs), prod(same.shape(same.result))
    for which, shift in ((0, 0), (1, 0), (0, 3), (1, 3)):
        memory = np.zeros(2 * max(size, inputs[which].size) + 8, np.float32)
        place = memory[: inputs[which].size].reshape(inputs[which].shape)
        place[...] = inputs[which]
        out = memory[shift : shift + size].reshape(same.shape(same.result))
        shared = [place if i == which else array for i, array in enumerate(inputs)]
        assert_same(operator(same)(*shared, out=out), want)


@CASES
def test_out_that_does_not_fit(case: Case) -> None:
    inputs, shape = arrays(case), case.shape(case.result)
    good = np.zeros(shape, np.float32)
    for bad, words in (
        (np.zeros(shape[:-1], np.float32), "shape"),
        (np.zeros((*shape[:-1], shape[-1] + 1), np.float32), "shape"),
        (good.astype(np.float16), "f16"),
        (good.astype(np.float64), "f32"),
        (read_only(good), "out"),
        ([0.0], "out"),
    ):
        with pytest.raises((ValueError, TypeError), match="out") as error:
            operator(case)(*inputs, out=bad)
        assert words in str(error.value)


@CASES
def test_inputs_that_are_no_tensors_of_these_types(case: Case) -> None:
    first, second = arrays(case)
    masked = np.ma.masked_array(first, mask=first > 0)
    swapped = first.astype(first.dtype.newbyteorder())
    for bad in (first.tolist(), None, masked, swapped, first.astype(np.float64), first.astype(np.int32), 3.0):
        with pytest.raises((ValueError, TypeError), match=r"input_forward|output_delta"):
            operator(case)(bad, second)
    with pytest.raises(ValueError, match="dtype"):
        operator(case)(first, second.astype(np.float16))


class Foreign:
    """Somebody's tensor, of which one knows nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@CASES
@pytest.mark.parametrize("form", ["plain", "sliced", "4 bytes off", "transposed"])
def test_anything_with_dlpack(form: str, case: Case) -> None:
    plain = arrays(case)
    inputs = [Foreign(FORMS.get(form, np.copy)(array)) for array in plain]
    got = operator(case)(*inputs)
    assert isinstance(got, np.ndarray)
    assert_same(got, expected(case, plain))
    out = np.zeros_like(got)
    foreign = Foreign(out)
    assert operator(case)(*inputs, out=foreign) is foreign
    assert_same(out, expected(case, plain))
