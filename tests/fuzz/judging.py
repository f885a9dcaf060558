"""Whether a sample is right: by the tests' own reference, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

import tvmconvgrad as cg
from tests.fuzz.placing import FILL, PLACES, between
from tests.fuzz.sample import EVERYWHERE, PLAIN, Sample
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Array, Convolution, Tensors, integers
from tests.support.oracles import reference

MOST_WORKSPACE = 2**28
"""Bytes that no small problem needs."""
TILE = 8
"""Positions that Winograd's algorithm may take together."""


def judge(sample: Sample) -> str:
    """What is wrong, in words that begin with its kind; nothing where all is right."""
    return judge_calls([sample], lambda _: None)


def judge_calls(samples: Sequence[Sample], tell: Callable[[Sample], None]) -> str:
    """The same of several calls of one kernel; `tell` gets each before it is made."""
    tell(samples[0])
    try:
        kernel = make(samples[0])
    except Exception as error:
        allowed = _is_allowed(samples[0], error)
        return "" if allowed else f"{type(error).__name__} where it is built: {_one_line(error)}"
    if kernel.workspace_bytes > MOST_WORKSPACE:
        return f"workspace: {kernel.workspace_bytes} bytes for {kernel}"
    for sample in samples:
        tell(sample)
        verdict = _judge_call(sample, kernel)
        if verdict:
            return verdict
    return ""


def _judge_call(sample: Sample, kernel: cg.Kernel) -> str:
    case, tensors = sample.case, operands(sample)
    inputs = [PLACES[place](array) for place, array in zip(sample.memory, case.arrays(tensors))]
    try:
        got = _call(sample, kernel, inputs)
    except Exception as error:
        return f"{type(error).__name__} where it is called: {_one_line(error)}"
    if isinstance(got, str):
        return got
    result, bias = got
    verdict = _compare(sample, kernel.schedule, tensors, layouts.to_canonical(result, case.axes(case.result)))
    return verdict or _compare_bias(sample, tensors, bias)


def make(sample: Sample) -> cg.Kernel:
    """The kernel of a sample, as the package makes it, and not kept on disk."""
    from tvmconvgrad import schedules
    from tvmconvgrad.compiler.llvm import compile_problem
    from tvmconvgrad.machines.host import missing_features
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.records.choice import Choice
    from tvmconvgrad.runtime.native import load_function
    from tvmconvgrad.spec.reducing import reduced

    problem, target = sample.call.problem(), parse_target(sample.target)
    if not all(0 not in shape for shape in (*problem.input_shapes, problem.output_shape)):
        kernel: cg.Kernel = sample.call.compile()
        return kernel
    same, choice = reduced(problem), None
    if sample.given and sample.rule is not None:
        scheduled = schedules.schedule(same, target, sample.rule, sample.given)
        choice = Choice.of(sample.rule, sample.given, str(scheduled))
    library, facts = compile_problem(same, target, sample.rule, choice)
    missing = missing_features(facts["requires"])  # asks for AMX's tile registers, too
    if missing:
        raise ValueError(f"this machine has no {', '.join(missing)}")
    function = load_function(library, same)
    return cg.Kernel(problem, target, facts["schedule"], facts["workspace_bytes"], function)


def operands(sample: Sample) -> Tensors:
    """Small integers, whose sums f32 holds, one or all of them replaced where the sample says so."""
    conv, result = sample.case.convolution, sample.case.result
    rng = np.random.default_rng(sample.seed)
    bound = conv.bound(result, 2**20)
    shapes = {name: shape for name, shape in conv.shapes.items() if name != result}
    tensors = {name: integers(rng, shape, bound) for name, shape in shapes.items()}
    if sample.value == EVERYWHERE:
        return {name: np.full_like(array, np.inf) for name, array in tensors.items()}
    if sample.value and all(array.size for array in tensors.values()):
        array = list(tensors.values())[int(rng.integers(2))]
        array.flat[int(rng.integers(array.size))] = float(sample.value)
    return tensors


def added(sample: Sample) -> Array:
    """The bias that is added, one element for each channel of the result: small integers."""
    channels = sample.case.convolution.shapes[sample.case.result][1]
    rng = np.random.default_rng(sample.seed + 2)
    return rng.integers(-FILL, FILL + 1, channels).astype(DTYPES[sample.case.dtype])


def before(sample: Sample) -> tuple[Array, Array]:
    """What the result and the bias gradient have before the call, in the operator's layout: small integers."""
    case, conv = sample.case, sample.case.convolution
    dtype = DTYPES[sample.result_dtype or case.dtype]
    channels = conv.shapes[_delta(case)][1]
    rng = np.random.default_rng(sample.seed + 1)
    result, bias = (rng.integers(-FILL, FILL + 1, shape) for shape in (case.shape(case.result), (channels,)))
    return result.astype(dtype), bias.astype(dtype)


def _delta(case: Case) -> str:
    """The input that is a gradient; the bias gradient is its sum."""
    return case.inputs[1] if case.result == "w" else case.inputs[0]


def _call(sample: Sample, kernel: cg.Kernel, inputs: list[Array]) -> tuple[Array, Array] | str:
    """The result, and the bias gradient; or what is wrong with the call."""
    copies = [array.tobytes() for array in inputs]
    cg.set_num_threads(sample.threads)
    got = _written(sample, kernel, inputs, sample.out, sample.bias)
    if isinstance(got, str):
        return got
    if [array.tobytes() for array in inputs] != copies:
        return "inputs: they are overwritten"
    cg.set_num_threads(sample.threads % 3 + 1)
    again = _written(sample, kernel, inputs, PLAIN if sample.accumulate else "new", sample.bias and PLAIN)
    if isinstance(again, str) or [array.tobytes() for array in again] != [array.tobytes() for array in got]:
        return f"bits: {sample.threads} and {sample.threads % 3 + 1} threads give different ones, or a call anew"
    return got


def _written(
    sample: Sample, kernel: cg.Kernel, inputs: list[Array], place: str, bias_place: str
) -> tuple[Array, Array] | str:
    """What one call writes to these places; without a place for the bias gradient, zeros stand for it."""
    result, sums = before(sample)
    out = None if place == "new" else PLACES[place](result)
    bias = PLACES[bias_place](sums) if bias_place else None
    options: dict[str, Any] = {"accumulate": True} if sample.accumulate else {}
    options |= {"bias": PLACES[sample.added](added(sample))} if sample.added else {}
    got = kernel(*inputs, out, **options, **({} if bias is None else {"bias_delta": bias}))
    if out is not None and got is not out:
        return "out: another array is returned"
    for name, array, where in (("out", out, place), ("bias_delta", bias, bias_place)):
        if where == "strided" and array is not None and not (between(array) == FILL).all():
            return f"{name}: what lies between its elements is overwritten"
    return np.array(got), np.zeros_like(sums) if bias is None else np.array(bias)


def _compare(sample: Sample, schedule: str, tensors: Tensors, got: Array) -> str:
    case, conv = sample.case, sample.case.convolution
    exact = reference.gradient(conv, case.result, tensors)
    if sample.accumulate:
        exact = exact + layouts.to_canonical(before(sample)[0], case.axes(case.result)).astype(np.float64)
    if sample.added:
        exact = exact + added(sample).astype(np.float64).reshape(-1, *[1] * conv.rank)
    with np.errstate(over="ignore"):
        expected = exact.astype(got.dtype)
    if got.shape != expected.shape:
        return f"wrong: shape {got.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    right = np.where(finite, _is_right(got, exact, expected, schedule), ~np.isfinite(got))
    if sample.value:
        tile = TILE if schedule.startswith("winograd") else 0
        reached = _rows(conv, tensors) if case.result == "w" else _near(case, ~finite, tile) | _at_pads(case, tensors)
        right |= ~np.isfinite(got) & reached & reference.met(conv, case.result)
    if right.all():
        return ""
    first = tuple(int(i) for i in np.argwhere(~right)[0])
    kind = f"{sample.value} reaches too far, or not far enough" if sample.value else "wrong"
    return f"{kind}: {int((~right).sum())} of {got.size}, at {first} {got[first]} for {expected[first]}, by {schedule}"


def _compare_bias(sample: Sample, tensors: Tensors, got: Array) -> str:
    """The same for the bias gradient: sums of integers, in whatever order, are exact."""
    if not sample.bias:
        return ""
    delta = tensors[_delta(sample.case)].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = delta.sum(axis=(0, *range(2, delta.ndim)))
        exact = exact + before(sample)[1].astype(np.float64) if sample.accumulate else exact
        expected = exact.astype(got.dtype)
    right = np.where(np.isfinite(expected), got == expected, ~np.isfinite(got))
    if right.all():
        return ""
    first = int(np.flatnonzero(~right)[0])
    return f"bias: {int((~right).sum())} of {got.size} wrong, at {first} {got[first]} for {expected[first]}"


def _is_right(got: Array, exact: Array, expected: Array, schedule: str) -> Array:
    """Where the result is the exact sum, rounded to its type; with tiles of more than four products along an axis
    (`products=` in a schedule's text), whose factors are no small fractions, where it is close to it."""
    if not schedule.startswith("winograd") or not set("56") & set(schedule.split(")")[0]):
        return np.asarray(got == expected)
    info: Any = ml_dtypes.finfo(got.dtype)  # type: ignore[no-untyped-call]
    with np.errstate(invalid="ignore"):
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=1.0)
        off = np.abs(got.astype(np.float64) - exact)
        return np.asarray(off <= float(info.eps) * np.abs(exact) + 2.0**-14 * largest)


def _rows(conv: Convolution, tensors: Tensors) -> Array:
    """The taps of a filter's gradient that an infinity may reach: pads are zeros, and 0 * inf is left open."""
    rows = np.zeros(conv.shapes["w"], bool)
    for name, array in tensors.items():
        bad = np.asarray(~np.isfinite(array).all(axis=(0, *range(2, array.ndim))))
        channels = bad[:, None] if name == "y" else np.repeat(bad.reshape(conv.groups, -1), conv.o // conv.groups, 0)
        rows |= channels.reshape(*channels.shape, *[1] * conv.rank)
    return rows


def _near(case: Case, bad: Array, tile: int) -> Array:
    """Where an infinity may reach beyond what it meets, no further than the filter's extent."""
    conv, result = case.convolution, case.result
    for axis, reach in enumerate(_reach(conv, result, tile), start=2):
        places = np.arange(bad.shape[axis])
        near = abs(places[:, None] - places) <= reach
        bad = np.moveaxis(np.tensordot(near.astype(float), bad.astype(float), (1, axis)), 0, axis) > 0
    return bad


def _at_pads(case: Case, tensors: Tensors) -> Array:
    """Where a filter's infinity is multiplied by a pad: pads are zeros, and 0 * inf is left open."""
    conv, result = case.convolution, case.result
    found = np.zeros(conv.shapes[result], bool)
    for o, c, *taps in np.argwhere(~np.isfinite(tensors["w"])):
        axes = [_meets(conv, result, axis, tap) for axis, tap in enumerate(taps)]
        products, inside = (reduce(np.logical_and.outer, of_axes) for of_axes in zip(*axes, strict=True))
        channel = o if result == "y" else o // (conv.o // conv.groups) * (conv.c // conv.groups) + c
        found[:, channel] |= products & ~inside
    return found


def _meets(conv: Convolution, result: str, axis: int, tap: int) -> tuple[Array, Array]:
    """Along an axis of a result, whether a tap has a product with each element, and whether that is with no pad."""
    stride, shift = conv.strides[axis], tap * conv.dilations[axis] - conv.pads_begin[axis]
    if result == "y":
        read = np.arange(conv.y[axis]) * stride + shift
        return np.ones(read.shape, bool), (read >= 0) & (read < conv.x[axis])
    ahead = np.arange(conv.x[axis]) - shift
    return ahead % stride == 0, (ahead >= 0) & (ahead < conv.y[axis] * stride)


def _reach(conv: Convolution, result: str, tile: int) -> list[int]:
    if result == "x":
        return [e - 1 + tile * d * s for e, d, s in zip(conv.extents, conv.dilations, conv.strides)]
    return [-(-(e - 1) // s) + tile * d for e, s, d in zip(conv.extents, conv.strides, conv.dilations)]


def _is_allowed(sample: Sample, error: Exception) -> bool:
    """Whether an error is right: numbers that don't go together, or an attribute that is too large."""
    text = str(error)
    return isinstance(error, ValueError) and (text.startswith("decisions: ") or sample.is_huge)


def _one_line(error: Any) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:300]
