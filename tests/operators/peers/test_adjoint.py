"""The law above all wording: <dy, conv(y, w)> = <dY, y> = <dW, w>, for whatever attributes are valid.

Three of the operators compute the gradients of one convolution with the same attributes; integers, so that the inner
products, taken in float64, are equal and not just close.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import tests.support.oracles.reference as taps
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Array, integers
from tests.support.cases.layouts import CONV_TRANSPOSE_FILTERS, CONVOLUTION_FILTERS
from tests.support.cases.random_cases import random_case

LAW = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
SOURCES = st.randoms(use_true_random=False)  # of all choices of a case, so that a failing one shrinks


def family(case: Case) -> list[Case]:
    """The same attributes with the operators of one forward operator: its filter's gradient, then its data's."""
    prefix = "ConvTranspose" if case.operator.startswith("ConvTranspose") else "Convolution"
    names = (f"{prefix}BackpropFilters", f"{prefix}BackpropData")
    shapes = ("attribute", "attribute" if prefix == "Convolution" else "not")
    padding = case.output_padding if prefix == "ConvTranspose" else None
    pairs = zip(names, shapes, strict=True)
    return [replace(case, operator=name, shape_by=shape, output_padding=padding) for name, shape in pairs]


def inner(a: Array, b: Array) -> float:
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64)))


def check_law(case: Case, filter_case: Case, data_case: Case, forward: Case) -> None:
    """Compare the three inner products, and the forward operator itself with the taps' sum."""
    note(f"{case}")
    conv = case.convolution
    rng = np.random.default_rng(conv.flops)
    tensors = {name: integers(rng, shape, 3) for name, shape in conv.shapes.items()}
    dw = filter_case.run({"x": tensors["x"], "y": tensors["y"]})
    products = {inner(dw, tensors["w"])}
    result = data_case.result  # y for Convolution, x for ConvTranspose
    other = "y" if result == "x" else "x"
    data = data_case.run({other: tensors[other], "w": tensors["w"]})
    products.add(inner(data, tensors[result]))
    ahead = forward.run({result: tensors[result], "w": tensors["w"]})
    assert_same(ahead, taps.gradient(conv, other, {result: tensors[result], "w": tensors["w"]}))
    products.add(inner(ahead, tensors[other]))
    assert len(products) == 1, f"{case}: {products}"


def check_convolution(source: Random) -> None:
    case = random_case(source, "ConvolutionBackpropFilters").with_dtype("f32")
    filter_case, data_case = family(case)
    # forward Convolution is the data gradient of ConvTranspose, with explicit pads
    axes = CONVOLUTION_FILTERS[case.filter_format]
    forward = replace(
        data_case,
        operator="ConvTransposeBackpropData",
        shape_by="not",
        filter_format=next(name for name, order in CONV_TRANSPOSE_FILTERS.items() if order == axes),
        auto_pad="none",
        new_names=False,
    )
    check_law(case, filter_case, data_case, forward)


def check_conv_transpose(source: Random) -> None:
    case = random_case(source, "ConvTransposeBackpropData").with_dtype("f32")
    filter_case, data_case = family(case)
    # forward ConvTranspose is the data gradient of Convolution, with explicit pads and output_padding
    forward = replace(
        filter_case,
        operator="ConvolutionBackpropData",
        filter_format="XIO" if case.filter_format[0] == "X" else "OIX",
        auto_pad="none",
        output_padding=case.convolution.beyond,
        new_names=False,
    )
    check_law(case, filter_case, data_case, forward)


@settings(LAW, max_examples=5)
@given(SOURCES)
def test_convolution(source: Random) -> None:
    check_convolution(source)


@settings(LAW, max_examples=5)
@given(SOURCES)
def test_conv_transpose(source: Random) -> None:
    check_conv_transpose(source)


@pytest.mark.slow
@settings(LAW, max_examples=60)
@given(SOURCES)
def test_convolution_many_times(source: Random) -> None:
    check_convolution(source)


@pytest.mark.slow
@settings(LAW, max_examples=60)
@given(SOURCES)
def test_conv_transpose_many_times(source: Random) -> None:
    check_conv_transpose(source)
