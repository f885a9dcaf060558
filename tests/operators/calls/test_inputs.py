"""Calls with bad inputs: an error in the caller's words, before any compiler is asked."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tvmconvgrad as cg
from tests.support.cases.case import DTYPES

PLAIN: dict[str, Any] = {"dilations": (1,), "pads_begin": (0,), "pads_end": (0,)}
OLD = cg.ConvolutionBackpropFilters(strides=(1,), filter_shape=(2, 3, 4), **PLAIN)
NEW = cg.ConvolutionBackwardWeights(strides=(1,), weights_shape=(2, 3, 4), **PLAIN)
DATA = cg.ConvolutionBackpropData(strides=(2,), **PLAIN)
FORWARD = cg.ConvTransposeBackpropData(strides=(1,), **PLAIN)
FIRST, SECOND = np.ones((2, 5, 3), np.float32), np.ones((2, 4, 4), np.float32)
SHAPE = np.array([2, 3, 4], np.int32)
BOTH = pytest.mark.parametrize(
    ("op", "names"),
    [(OLD, ("input_forward", "output_delta", "filter_shape")), (NEW, ("src", "diff_dst", "weights_shape"))],
    ids=["old names", "new names"],
)


def refused(words: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    assert words in str(error.value)
    assert_plain(error.value)


def assert_plain(error: BaseException) -> None:
    """One line, raised by this package, with nothing of TVM on the way."""
    assert len(str(error).splitlines()) == 1
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert not [name for name in modules if name.partition(".")[0] in ("tvm", "tvm_ffi")]
    assert any(name.startswith("tvmconvgrad") for name in modules)


@BOTH
def test_too_many_or_too_few(op: Any, names: tuple[str, str, str]) -> None:
    first, second, _ = names
    refused(f"{type(op).__name__} takes 3 inputs, 4 were given", lambda: op(FIRST, SECOND, SHAPE, None))
    refused(f"{second}: missing", lambda: op(FIRST))
    refused(f"{first}: missing", lambda: op())
    refused(f"{first}: missing", lambda: op(**{second: SECOND}))
    refused(f"{second}: missing", lambda: op(**{first: FIRST}))
    refused("takes 2 inputs, 3 were given", lambda: FORWARD(FIRST, SECOND, SHAPE))


@BOTH
def test_names(op: Any, names: tuple[str, str, str]) -> None:
    want = op(FIRST, SECOND)
    for one, two, three in (("input_forward", "diff_dst", "weights_shape"), ("src", "output_delta", "filter_shape")):
        assert np.array_equal(op(**{two: SECOND, three: SHAPE, one: FIRST}), want)
    assert np.array_equal(op(FIRST, SECOND, SHAPE), want)
    refused("no input 'inputs'", lambda: op(FIRST, SECOND, inputs=FIRST))
    refused("no input 'filter'", lambda: op(FIRST, filter=SECOND))
    refused("given twice", lambda: op(FIRST, SECOND, src=FIRST))
    refused("given twice", lambda: op(src=FIRST, input_forward=FIRST, output_delta=SECOND))
    refused("given twice", lambda: op(FIRST, SECOND, SHAPE, weights_shape=SHAPE))


@BOTH
def test_errors_name_the_input_as_the_caller_does(op: Any, names: tuple[str, str, str]) -> None:
    first, second, shape = names
    refused(f"{first}: None", lambda: op(None, SECOND))
    refused(f"{second}: [1.0]", lambda: op(FIRST, [1.0]))
    refused(f"{second}: dtype f16 differs from {first}'s f32", lambda: op(FIRST, SECOND.astype(np.float16)))
    refused(f"{first}: dtype float64", lambda: op(FIRST.astype(np.float64), SECOND))
    refused(f"{first}: ", lambda: op(FIRST[0], SECOND))
    refused(f"{second}: ", lambda: op(FIRST, SECOND[:1]))
    refused(f"{shape}: shape (2, 3, 4) does not fit", lambda: op(FIRST, SECOND[:, :, :3]))
    refused("out: shape", lambda: op(FIRST, SECOND, out=np.zeros((2, 3, 5), np.float32)))
    refused("target: ", lambda: op(FIRST, SECOND, target="nonsense"))


@BOTH
def test_the_shape_input(op: Any, names: tuple[str, str, str]) -> None:
    want = op(FIRST, SECOND)
    for shape in (SHAPE, [2, 3, 4], (2, 3, 4), np.array([2, 0, 3, 0, 4, 0], np.int32)[::2]):
        assert np.array_equal(op(FIRST, SECOND, shape), want)
    for bad, words in (
        (SHAPE.astype(np.int64), "1-D tensor of s32"),
        (SHAPE.astype(np.uint32), "1-D tensor of s32"),
        (SHAPE.astype(np.float32), "1-D tensor of s32"),
        (SHAPE.astype(">i4"), "1-D tensor of s32"),
        (SHAPE[None], "1-D tensor of s32"),
        (SHAPE[:2], "expected 3"),
        (np.array([2, 3, -4], np.int32), "-4"),
        (np.array([2, 3, 5], np.int32), "5"),
        ([2, 3, 4.0], "4.0"),
        ([2, 3, True], "True"),
        ("234", "neither a 1-D s32 tensor nor a sequence of ints"),
        (234, "neither"),
        ({2, 3, 4}, "neither"),
        (range(2, 5), "neither"),
    ):
        refused(f"{names[2]}: ", lambda bad=bad: op(FIRST, SECOND, bad))
        refused(words, lambda bad=bad: op(FIRST, SECOND, bad))
        refused(f"{names[2]}: ", lambda bad=bad: op.compile(FIRST.shape, SECOND.shape, bad))


def test_the_shape_input_wins_over_the_attribute() -> None:
    with_attribute = cg.ConvolutionBackpropData(
        strides=(2,), dilations=(1,), pads_begin=(0,), pads_end=(0,), output_shape=(1, 5, 2)
    )
    ones, weights = np.ones((1, 2, 3), np.float32), np.ones((3, 2, 3), np.float32)
    assert with_attribute(ones, weights).shape == (1, 5, 2)
    assert with_attribute(ones, weights, [1, 6, 2]).shape == (1, 6, 2)
    assert with_attribute(ones, weights, dst_shape=(1, 6, 2)).shape == (1, 6, 2)
    assert DATA(ones, weights).shape == (1, 5, 2)


def test_libraries_may_be_mixed() -> None:
    torch = pytest.importorskip("torch")
    want = OLD(FIRST, SECOND)
    result = OLD(torch.from_numpy(FIRST), SECOND, torch.tensor([2, 3, 4], dtype=torch.int32))
    assert isinstance(result, torch.Tensor)
    assert np.array_equal(result.numpy(), want)
    assert isinstance(OLD(FIRST, torch.from_numpy(SECOND)), np.ndarray)
    refused("filter_shape: ", lambda: OLD(FIRST, SECOND, torch.tensor([2, 3, 4])))
    refused("output_delta: dtype bf16 differs", lambda: OLD(FIRST, torch.from_numpy(SECOND).bfloat16()))
    refused("output_delta: is on device meta", lambda: OLD(FIRST, torch.from_numpy(SECOND).to("meta")))
    refused("filter_shape: ", lambda: OLD(FIRST, SECOND, torch.tensor([2, 3, 4], dtype=torch.int32, device="meta")))


def test_the_quick_way_of_later_calls_checks_as_the_first() -> None:
    op = copy.copy(OLD)
    for _ in range(2):
        assert op(FIRST, SECOND)[0, 0, 0] == 8
        refused("input_forward: ", lambda: op(FIRST[0], SECOND))
        refused("differs", lambda: op(FIRST, SECOND.astype(np.float16)))
        refused("out: shape", lambda: op(FIRST, SECOND, out=np.zeros(3, np.float32)))
        refused("filter_shape: ", lambda: op(FIRST, SECOND, [2, 3, 5]))
        assert op(FIRST[:, :4], SECOND[:, :3])[0, 0, 0] == 6
    assert op(FIRST, SECOND, filter_shape=[2, 3, 4])[0, 0, 0] == 8


def test_operators_are_values() -> None:
    OLD(FIRST, SECOND)
    for other in (pickle.loads(pickle.dumps(OLD)), copy.copy(OLD), copy.deepcopy(OLD)):
        assert other == OLD
        assert hash(other) == hash(OLD)
        assert np.array_equal(other(FIRST, SECOND), OLD(FIRST, SECOND))


class Weird:
    """Has attributes of a tensor, and is none."""

    shape = (2, 5, 3)
    dtype = np.dtype(np.float32)

    def __dlpack__(self) -> Any:
        raise RuntimeError("weird")

    def __repr__(self) -> str:
        raise RuntimeError("has no text")


arrays = st.builds(
    lambda shape, dtype: np.zeros(shape, dtype),
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from([*DTYPES.values(), "f8", "i4", "?", "c8", "O", "U3", ">f4", "M8[s]"]),
)
nonsense = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=4), arrays,
    st.lists(st.integers(-2, 5) | st.floats() | st.none(), max_size=4),
    st.sampled_from([FIRST, SECOND, SHAPE, FIRST.tolist(), np.float32(1), np.float32]),
    st.sampled_from([Weird(), Weird, object(), {}, ()]),
)  # fmt: skip
names = st.sampled_from(
    ["input_forward", "src", "output_delta", "filter", "weights_shape", "dst_shape", "out", "target", "x"]
)
operators = st.sampled_from([OLD, NEW, DATA, FORWARD])
quickly = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quickly
@given(operators, st.lists(nonsense, max_size=4), st.dictionaries(names, nonsense, max_size=3))
def test_nonsense_in_calls(op: Any, inputs: list[Any], named: dict[str, Any]) -> None:
    try:
        op(*inputs, **named)
    except (TypeError, ValueError) as error:
        assert_plain(error)


shapes = st.lists(st.integers(-1, 6) | st.sampled_from([2**31, 2**62, 2**64, 1.5, None, "3"]), max_size=5) | nonsense
options = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["f32", "f16", "f64", 3, None, np.float32, np.dtype("f2")]) | nonsense,
        "target": st.sampled_from(["llvm", "cuda", "llvm -x", {"kind": "llvm"}]) | nonsense,
        "schedule": st.sampled_from(["weights-o", "nonsense"]) | nonsense,
    },
)


@quickly
@given(operators, shapes, shapes, shapes | st.none(), options)
def test_nonsense_in_compile(op: Any, first: Any, second: Any, shape: Any, others: dict[str, Any]) -> None:
    try:
        op.compile(first, second, shape, **others)
    except (TypeError, ValueError) as error:
        assert_plain(error)
