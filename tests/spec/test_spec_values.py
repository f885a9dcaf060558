"""Values for messages, and values whose classes behave otherwise than they look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tvmconvgrad import spec
from tvmconvgrad.spec.values import parse_bool, show

RANK_ONE = {"strides": [1], "dilations": [1], "pads_begin": [0], "pads_end": [0]}


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1) for _ in range(9)] if depth else []


@pytest.mark.parametrize("name", ["list", "tuple", "dict", "set", "frozenset", "deque", "array", "str", "int"])
def test_a_class_may_have_the_name_of_another_one(name: str) -> None:
    kind = type(name, (), {"__repr__": lambda self: "its own words"})
    assert show(kind()) == "its own words"
    with pytest.raises(TypeError, match=r"^strides: expected a sequence of ints, got its own words of type"):
        spec.ConvolutionBackpropFilters(**{**RANK_ONE, "strides": kind()})


@pytest.mark.parametrize("value", [nested(5), "x" * 10**6, ["x" * 100] * 1000, np.zeros((9, 9, 9, 9)), {1: nested(5)}])
def test_a_message_is_short(value: Any) -> None:
    assert len(show(value)) < 500


class Unequal(str):
    """Its characters are those of a right word, and it equals none."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def lower(self) -> str:
        raise AssertionError("what a subclass does to its methods is unknown")

    upper = removeprefix = lower


@pytest.mark.parametrize(("name", "word"), [("auto_pad", "VALID"), ("data_format", "NCX"), ("filter_format", "OIX")])
def test_a_subclass_of_str_is_its_characters(name: str, word: str) -> None:
    op = spec.ConvolutionBackpropFilters(**{**RANK_ONE, name: Unequal(word)})
    assert op == spec.ConvolutionBackpropFilters(**{**RANK_ONE, name: word})
    assert type(getattr(op, name)) is str
    with pytest.raises(ValueError, match=f"^{name}: got "):
        spec.ConvolutionBackpropFilters(**{**RANK_ONE, name: Unequal("x")})


def test_names_of_types_and_targets_are_their_characters_too() -> None:
    op = cg.ConvolutionBackpropFilters(**RANK_ONE, filter_shape=(1, 2, 3))
    shapes = ((1, 4, 2), (1, 4, 3))
    assert op.problem(*shapes, dtype=Unequal("float16")).dtype == "f16"
    for words in ("llvm -mcpu=native", "llvm -mattr=+fma"):
        assert cg.machines.targets.parse_target(Unequal(words)) == cg.machines.targets.parse_target(words)
    assert cg.machines.targets.parse_target({"kind": Unequal("llvm")}) == cg.Target()
    with pytest.raises(ValueError, match=r"^schedule: 'x' is unknown"):
        op.compile(*shapes, schedule=Unequal("x"))


@pytest.mark.parametrize("value", [np.zeros(3), 1, 0, "yes", [], np.zeros(2, bool), object()])
def test_what_is_no_bool(value: Any) -> None:
    op = cg.ConvolutionBackpropFilters(**RANK_ONE, filter_shape=(1, 2, 3))
    with pytest.raises(TypeError, match=r"^tuned: got .* expected a bool$"):
        op.compile((1, 4, 2), (1, 4, 3), tuned=value)


def test_bools_of_other_libraries() -> None:
    assert parse_bool("x", np.True_) is True
    assert parse_bool("x", np.array(False)) is False


@pytest.mark.parametrize("target", [np.zeros(3), np.array(["llvm -mcpu=native"]), 3, b"llvm", ["llvm"]])
def test_what_compares_with_a_target_is_none(target: Any) -> None:
    op = cg.ConvolutionBackpropFilters(**RANK_ONE, filter_shape=(1, 2, 3))
    inputs = np.ones((1, 4, 2), np.float32), np.ones((1, 4, 3), np.float32)
    with pytest.raises(TypeError, match=r"^target: .* is neither a string"):
        op(*inputs, target=target)


class Named:
    """Something with a name that is no string."""

    name = np.zeros(2)
    __name__ = np.zeros(2)


def test_a_name_of_a_type_that_is_no_string() -> None:
    with pytest.raises(ValueError, match=r"^dtype: "):
        spec.parse_dtype(Named())
