"""The options of a kernel's final write, with every rule forced: `accumulate`, `bias_delta`, `bias`, `result_dtype`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvmconvgrad
from tests.support.building.scheduled import kernel as kernel_of
from tests.support.cases import layouts, winograd
from tests.support.cases.by_rule import cases, rules_for
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.cases.sampling import covering
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec.epilogue import Epilogue

OPTIONS: list[dict[str, Any]] = [
    {"accumulate": True, "bias_delta": True},
    {"accumulate": True},
    {"bias_delta": True, "result_dtype": "f32"},
    {"accumulate": True, "bias_delta": True, "result_dtype": "f32"},
]

FORWARD_OPTIONS: list[dict[str, Any]] = [{"bias": True}, {"bias": True, "result_dtype": "f32"}]

BESIDE = [
    # weights gradients beside which the bias is summed: several splits, channels of several partitions, pairs of images
    Convolution(4, 1, 24, 40, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 16, 256, (14, 14), (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(3, 1, 8, 64, (20, 20), (10, 10), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
    Convolution(4, 64, 64, 64, (19, 23), (19, 23), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    # a part of dy has no products; and dy has none at all
    Convolution(1, 1, 4, 16, (3, 3), (13, 13), (3, 3), (1, 1), (1, 1), (6, 6), (6, 6)),
    Convolution(1, 1, 2, 2, (1,), (2,), (1,), (2,), (1,), (1,), (1,)),
]
TAILS = [
    # rows and channels of which blocks of four, eight or sixteen would overlap
    Convolution(2, 1, 32, 16, (7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 1, 45, 37, (5, 13), (5, 13), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 1, 32, 16, (6, 22), (3, 11), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 10, 30, 50, (9, 11), (9, 11), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
]


def bias_of(case: Case, tensors: Tensors) -> Array:
    """The bias gradient in float64, by its definition."""
    name = case.inputs[1] if case.result == "w" else case.inputs[0]
    delta = tensors[name].astype(np.float64)
    return delta.sum(axis=(0, *range(2, delta.ndim)))  # type: ignore[no-any-return]


def compiled(case: Case, rule: str | None, options: dict[str, Any]) -> Any:
    """The case's kernel."""
    call = case.call
    op = getattr(tvmconvgrad, call.operator)(**call.attributes)
    return op.compile(*call.shapes, call.shape_input, dtype=case.dtype, schedule=rule, **options)


def check(kernel: Any, case: Case, options: dict[str, Any]) -> None:
    """Call a kernel and compare all that it writes with sums in float64: equal, since they are of small integers."""
    tensors = operands(case.convolution, case.result)
    exact, exact_bias = reference.gradient(case.convolution, case.result, tensors), bias_of(case, tensors)
    dtype = DTYPES[options.get("result_dtype", case.dtype)]
    random = np.random.default_rng(1)
    out = random.integers(-3, 4, case.shape(case.result)).astype(dtype)
    bias = random.integers(-3, 4, exact_bias.shape).astype(dtype)
    if options.get("accumulate"):
        exact = exact + layouts.to_canonical(out, case.axes(case.result)).astype(np.float64)
        exact_bias = exact_bias + bias.astype(np.float64)
    given = {"accumulate": options.get("accumulate", False), "bias_delta": bias if "bias_delta" in options else None}
    if options.get("bias"):
        added = np.arange(exact.shape[1]) % 7 - 3.0  # no two neighbours are alike
        exact, given["bias"] = exact + added.reshape(-1, *[1] * case.convolution.rank), added.astype(DTYPES[case.dtype])
    assert kernel(*case.arrays(tensors), out, **given) is out
    assert_same(layouts.to_canonical(out, case.axes(case.result)), exact.astype(dtype))
    if "bias_delta" in options:
        assert_same(bias, exact_bias.astype(dtype))


def check_all(case: Case, rules: Sequence[str], options: dict[str, Any]) -> None:
    """Check the kernels of all these rules."""
    assert rules
    for rule in rules:
        kernel = compiled(case, rule, options)
        assert kernel.schedule.startswith(rule)
        check(kernel, case, options)


def _forwards(found: Sequence[Case]) -> list[Case]:
    """Those whose result is data."""
    return [case for case in found if case.result != "w"]


@pytest.mark.parametrize("case", covering(cases(), each=lambda case: [case.convolution]))
def test_every_rule(case: Case) -> None:
    check_all(case, rules_for(case), OPTIONS[len(str(case)) % len(OPTIONS)])


@pytest.mark.parametrize("case", covering(_forwards(cases()), each=lambda case: [case.convolution]))
def test_every_rule_adds_a_bias(case: Case) -> None:
    check_all(case, rules_for(case), FORWARD_OPTIONS[len(str(case)) % len(FORWARD_OPTIONS)])


def _of(convolutions: Sequence[Convolution]) -> list[Case]:
    """All operators, layouts and types in turn."""
    found = []
    for conv in convolutions:
        for operator in OPERATORS:
            for data_format in layouts.DATA_FORMATS:
                formats = list(layouts.filter_formats(operator))
                dtype = ("f32", "f16", "bf16")[len(found) % 3]
                found.append(Case(operator, conv, data_format, formats[len(found) // 3 % len(formats)], dtype))
    return found


@pytest.mark.parametrize("case", covering(_of(BESIDE), each=lambda case: [case.convolution]))
def test_the_bias_beside_sums(case: Case) -> None:
    rules = rules_for(case)
    check_all(case, rules, {"bias_delta": True})
    check_all(case, rules, {"bias_delta": True, "accumulate": True})


@pytest.mark.parametrize("case", covering(_of(TAILS), each=lambda case: [case.convolution]))
def test_nothing_is_added_twice(case: Case) -> None:
    check_all(case, rules_for(case), {"accumulate": True})


@pytest.mark.parametrize("pair", covering(winograd.exact(), winograd.kinds))
def test_winograd(pair: tuple[Case, str]) -> None:
    case, rule = pair
    options: dict[str, Any] = {"accumulate": True, "bias_delta": True}
    if case.result != "w" and len(str(case)) % 2:
        options = {"bias": True}
    problem, target = replace(case.call.problem(), epilogue=Epilogue(**options)), parse_target(winograd.TARGET)
    products = schedules.schedule(problem, target, rule).candidates["products"]
    check(kernel_of(problem, target, rule, {"products": products[0]}), case, options)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_number_of_threads_changes_no_bit(operator: str, dtype: str) -> None:
    case = Case(operator, BESIDE[0], dtype=dtype)
    rng = np.random.default_rng(3)
    shapes = case.convolution.shapes  # fractions: their sum depends on its order
    inputs = case.arrays({role: rng.standard_normal(shapes[role]) for role in case.inputs})
    kernel = compiled(case, None, {"accumulate": True, "bias_delta": True})
    results = []
    for count in (1, 2, 3, 8):
        tvmconvgrad.set_num_threads(count)
        out, bias = (np.ones(shape, DTYPES[dtype]) for shape in kernel.problem.output_shapes)
        kernel(*inputs, out, accumulate=True, bias_delta=bias)
        results.append(out.tobytes() + bias.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_number_of_threads_changes_no_bit_of_a_forward(dtype: str) -> None:
    case = Case("ConvTransposeBackpropData", BESIDE[0], dtype=dtype)
    rng = np.random.default_rng(3)
    x, w = case.arrays({role: rng.standard_normal(case.convolution.shapes[role]) for role in case.inputs})
    kernel = compiled(case, None, {"bias": True})
    bias = rng.standard_normal(kernel.problem.bias_shape).astype(DTYPES[dtype])
    results = set()
    for count in (1, 2, 3, 8):
        tvmconvgrad.set_num_threads(count)
        results.add(kernel(x, w, bias=bias).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("yes", [np.True_, np.array(True)], ids=repr)
def test_a_bool_of_numpy_is_one(yes: Any) -> None:
    operator = tvmconvgrad.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), pads_begin=(1,), pads_end=(1,), filter_shape=(3, 2, 2)
    )
    ones, out = np.ones((1, 5, 2), np.float32), np.zeros((3, 2, 2), np.float32)
    for times in (1, 2):  # the second time by the quick way
        operator(ones, ones, out=out, accumulate=yes)
        assert np.array_equal(out[:, 0, 0], np.array([4, 5, 4]) * times)
