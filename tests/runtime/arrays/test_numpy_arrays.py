"""NumPy's arrays: what is read where it lies, what is refused, and in which words."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, NEW_NAMES, WIDE_FILTERS, layer
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Array


def read_only(array: Array) -> Array:
    copy: Array = array.copy()
    copy.flags.writeable = False
    return copy


def memory_mapped(array: Array, folder: Path) -> Any:
    path = folder / "array"
    path.write_bytes(array.tobytes())
    return np.memmap(path, array.dtype, "r", shape=array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["plain", "read-only", "memory-mapped"])
def test_dense_arrays_are_not_copied(form: str, dtype: str, tmp_path: Path) -> None:
    kernel, inputs, want = layer(WIDE_FILTERS.with_dtype(dtype))
    forms: dict[str, Any] = {
        "plain": np.copy,
        "read-only": read_only,
        "memory-mapped": lambda array: memory_mapped(array, tmp_path),
    }
    inputs[0] = forms[form](inputs[0])
    out = np.empty_like(want)
    kernel(*inputs, out)
    tracemalloc.start()
    kernel(*inputs, out)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < inputs[0].nbytes / 4
    assert_same(out, want)


def test_that_copies_would_be_noticed() -> None:
    kernel, inputs, want = layer(WIDE_FILTERS)
    strided = np.asfortranarray(inputs[0])
    tracemalloc.start()
    assert_same(kernel(strided, inputs[1]), want)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most > inputs[0].nbytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_read_only_inputs_stay_as_they_are(dtype: str) -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    locked = [read_only(array) for array in inputs]
    assert_same(kernel(*locked), want)
    for array, before in zip(locked, inputs, strict=True):
        assert not array.flags.writeable
        assert_same(array, before)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix() -> None:
    # the filter of a 1-D, 1x1 convolution is no matrix, but two axes of length one make the result of NXC one
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), filter_shape=(1, 2, 3)
    )
    first, second = np.ones((1, 4, 2), np.float32), np.ones((1, 4, 3), np.float32)
    with pytest.raises(ValueError, match="input_forward: shape"):
        op.compile(first.shape, second.shape)(np.asmatrix(first[0]), second)
    assert_same(op(first, second), np.full((1, 2, 3), 4, np.float32))


@pytest.mark.parametrize("case", [FILTERS, NEW_NAMES], ids=["old names", "new names"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda array: np.ma.masked_array(array), "MaskedArray"),
        (lambda array: array.tolist(), "of type list is no tensor"),
        (lambda array: None, "NoneType is no tensor"),
        (lambda array: np.ndarray, "is no tensor"),
        (lambda array: array.astype(object), "dtype object is not supported, expected f32, f16 or bf16"),
        (lambda array: array.astype(">f4"), "in foreign byte order is not supported"),
        (lambda array: array.astype(np.float64), "dtype float64 is not supported"),
        (lambda array: array.astype("M8[s]"), "is not supported"),
        (lambda array: array.astype([("value", "f4")]), "is not supported"),
        (lambda array: array.astype(np.float16), "dtype f16 does not fit, this kernel is compiled for f32"),
        (lambda array: array[:1], "does not fit, this kernel is compiled for (2, 5, 4, 3)"),
        (lambda array: array[0], "does not fit"),
        (lambda array: np.float32(1), "is no tensor"),
    ],
)
def test_inputs_that_are_refused(bad: Any, words: str, case: Case) -> None:
    kernel, inputs, _ = layer(case)
    if words == "is no tensor" and isinstance(bad(inputs[0]), np.generic):
        words = ""  # a scalar: whether it has __dlpack__ depends on NumPy's version
    for which, name in enumerate(case.call.compile().problem.input_names):
        given = [bad(array) if i == which else array for i, array in enumerate(inputs)]
        with pytest.raises((TypeError, ValueError)) as error:
            kernel(*given)
        assert str(error.value).startswith(f"{name}: ")
        assert words.split("(2,")[0] in str(error.value)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda want: want[..., :-1], "out: shape"),
        (lambda want: want.astype(np.float16), "out: dtype f16"),
        (lambda want: want.astype(np.int32), "out: dtype int32"),
        (read_only, "out: is read-only"),
        (lambda want: np.broadcast_to(np.float32(0), want.shape), "out: is read-only"),
        (lambda want: np.lib.stride_tricks.as_strided(want.copy(), want.shape, (0,) * want.ndim), "stride 0"),
        (lambda want: want.tolist(), "out: "),
        (lambda want: True, "out: True of type bool is no tensor"),
    ],
)
def test_results_that_are_refused(bad: Any, words: str) -> None:
    kernel, inputs, want = layer()
    out = bad(np.zeros_like(want))
    with pytest.raises((TypeError, ValueError)) as error:
        kernel(*inputs, out=out)
    assert words in str(error.value)
    if isinstance(out, np.ndarray):
        assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_on_top_of_an_input(dtype: str) -> None:
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    for which in (0, 1):
        for shift in (0, 1, 7):
            memory = np.zeros(inputs[which].size + want.size + shift, want.dtype)
            place = memory[: inputs[which].size].reshape(inputs[which].shape)
            place[...] = inputs[which]
            out = memory[shift : shift + want.size].reshape(want.shape)
            assert kernel(*[place if i == which else array for i, array in enumerate(inputs)], out) is out
            assert_same(out, want)


def test_a_result_between_two_inputs_that_only_touch_it() -> None:
    kernel, inputs, want = layer()
    memory = np.zeros(inputs[0].size + want.size + inputs[1].size, np.float32)
    parts = np.split(memory, [inputs[0].size, inputs[0].size + want.size])
    first, out, second = (part.reshape(a.shape) for part, a in zip(parts, (inputs[0], want, inputs[1]), strict=True))
    first[...], second[...] = inputs
    assert kernel(first, second, out) is out
    for array, expected in ((out, want), (first, inputs[0]), (second, inputs[1])):
        assert_same(array, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "channels"), [(0, 3), (2, 0), (0, 0)])
def test_empty_tensors(batch: int, channels: int, dtype: str) -> None:
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(0,), pads_end=(0,), filter_shape=(1, channels, 4)
    )
    first, second = np.ones((batch, 5, channels), DTYPES[dtype]), np.ones((batch, 5, 4), DTYPES[dtype])
    out = np.full((1, channels, 4), 7, DTYPES[dtype])
    strided = np.full((2, channels, 8), 7, DTYPES[dtype])[::2, :, ::2]
    for result in (op(first, second), op(first, second, out=out), op(first, second, out=strided)):
        assert_same(result, np.zeros((1, channels, 4), DTYPES[dtype]))
    with pytest.raises(ValueError, match="out: is read-only"):
        op(first, second, out=read_only(out))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_begin_with_a_cache_line(dtype: str) -> None:
    kernel, inputs, want = layer(WIDE_FILTERS.with_dtype(dtype))
    results = [kernel(*inputs) for _ in range(3)]
    assert [result.ctypes.data % 64 for result in results] == [0, 0, 0]
    for result in results:
        assert_same(result, want)
        assert result.flags.c_contiguous
