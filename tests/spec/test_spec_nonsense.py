"""Whatever is passed, the only exceptions are ValueError and TypeError."""

from __future__ import annotations

import contextlib
import inspect

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmconvgrad import spec

OPERATORS = [getattr(spec, name) for name in spec.__all__ if name.startswith("Conv")]

small = st.integers(-1, 4)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)


def containers(inner):
    """Lists, tuples and dictionaries."""
    names = st.text(max_size=2)
    return st.lists(inner, max_size=6) | st.tuples(inner, inner) | st.dictionaries(names, inner, max_size=2)


anything = st.from_type(type).flatmap(st.from_type) | st.recursive(scalars, containers, max_leaves=8)
limits = st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 1.0, True, None])
words = ["none", "VALID", "same_upper", "same_lower", "NXC", "NCX", "OIX", "XIO", "IOX", "XOI", 1, 2, None]
nearly = st.one_of(
    st.lists(small, min_size=1, max_size=5),
    st.lists(small | limits, max_size=5),
    st.sampled_from(words),
)
NAMES = sorted(
    {name for op in OPERATORS for name in inspect.signature(op).parameters if name != "unknown"} | {"stride", ""}
)


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    operator=st.sampled_from(OPERATORS),
    attributes=st.dictionaries(st.sampled_from(NAMES), anything | nearly),
    base=st.booleans(),
)
def test_nonsense_as_attributes(operator, attributes, base):
    rank_one = {"strides": [1], "dilations": [1], "pads_begin": [0], "pads_end": [0]} if base else {}
    with contextlib.suppress(ValueError, TypeError):
        op = operator(**{**rank_one, **attributes})
        assert op == op
        assert isinstance(repr(op), str)
        assert isinstance(hash(op), int)


@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    operator=st.sampled_from(OPERATORS),
    first=anything | nearly,
    second=anything | nearly,
    shape=anything | nearly,
    dtype=anything | st.just("f16"),
)
def test_nonsense_as_arguments(operator, first, second, shape, dtype):
    op = operator(strides=[1], dilations=[1], pads_begin=[0], pads_end=[0])
    with contextlib.suppress(ValueError, TypeError):
        op.problem(first, second, shape, dtype)


@st.composite
def plausible(draw):
    """Attributes and shapes of the right ranks, now and then fitting together."""
    operator, rank = draw(st.sampled_from(OPERATORS)), draw(st.integers(1, 3))
    per_axis = st.lists(st.one_of(small, st.sampled_from([0, 1, 1, 2, 2**62])), min_size=rank, max_size=rank)
    shape = st.lists(st.one_of(small, st.sampled_from([1, 1, 1, 2, 2**62])), min_size=rank + 2, max_size=rank + 2)
    attributes = {
        "strides": draw(per_axis),
        "dilations": draw(per_axis),
        "pads_begin": draw(per_axis),
        "pads_end": draw(per_axis),
        "auto_pad": draw(st.sampled_from(["none", "same_upper", "same_lower", "valid"])),
        "groups": draw(st.sampled_from([1, 1, 1, 2])),
        "data_format": draw(st.sampled_from(["NXC", "NCX"])),
    }
    if "output_padding" in inspect.signature(operator).parameters:
        attributes["output_padding"] = draw(st.none() | per_axis)
    return operator, attributes, draw(shape), draw(shape), draw(st.none() | shape)


@settings(deadline=None, max_examples=1000)
@given(plausible())
def test_what_is_accepted_is_consistent(case):
    operator, attributes, first, second, shape = case
    try:
        problem = operator(**attributes).problem(first, second, shape)
    except (ValueError, TypeError):
        return
    assert problem.input_shapes == (tuple(first), tuple(second))
    assert shape is None or problem.output_shape == tuple(shape)
    assert spec.Problem.from_dict(problem.to_dict()) == problem
    assert min(problem.output_shape) >= 0
    g = problem.geometry
    for values in (g.x, g.y, g.pads_begin, g.pads_end):
        assert len(values) == g.rank
        assert min(values) >= 0


def test_an_error_of_the_callers_own_object_comes_through():
    class Hostile:
        def __index__(self):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        spec.ConvolutionBackpropFilters(strides=[Hostile()], dilations=[1], auto_pad="valid")
