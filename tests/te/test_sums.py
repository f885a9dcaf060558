"""The sums of te/, compiled as they are over operands as the formulas have them: no schedule takes part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.sym import Analyzer

from tests.support.cases.case import Case
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.oracles import reference
from tvmconvgrad.te import data_gradient, filter_gradient, forward
from tvmconvgrad.te.tensors import Im2col, Index, Stage

CONVOLUTIONS = [
    Convolution(2, 2, 4, 6, (7, 8), (4, 3), (3, 2), (2, 3), (1, 2), (1, 1), (1, 0)),
    Convolution(3, 1, 2, 3, (5,), (2,), (4,), (1,), (1,), (0,), (0,)),
]
"""The second one sums over positions of y: it has fewer of them than taps."""


def evaluated(inputs: Sequence[Stage], total: Stage, arrays: Sequence[Array]) -> Array:
    """The elements of a sum."""
    function = te.create_prim_func([*inputs, total], index_dtype_override="int64")
    out = tvm.runtime.empty([int(extent) for extent in total.shape], "float32")
    tvm.compile(function, target="llvm")(*(tvm.runtime.tensor(array) for array in arrays), out)
    found: Array = out.numpy()
    return found


def within(index: Sequence[Index], sizes: Sequence[int], value: Index) -> Index:
    """`value`, or zero where an index lies outside."""
    inside = [condition for i, size in zip(index, sizes, strict=True) for condition in (i >= 0, i < size)]
    return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32"))


def im2col(conv: Convolution, x: Stage) -> Im2col:
    """What taps read of canonical x."""

    def element(n: Index, g: Index, c: Index, p: Sequence[Index], k: Sequence[Index]) -> Index:
        axes = zip(p, conv.strides, k, conv.dilations, conv.pads_begin, strict=True)
        at = [i * stride + tap * dilation - pad for i, stride, tap, dilation, pad in axes]
        return within(at, conv.x, x(n, g * (conv.c // conv.groups) + c, *at))

    return element


def grouped(conv: Convolution, y: Stage, begins: Sequence[int], extents: Sequence[int]) -> Stage:
    """Elements (n, g, o, *p) of canonical y, from `begins` on, zero outside."""
    o_group = conv.o // conv.groups

    def element(n: Index, g: Index, o: Index, *p: Index) -> Index:
        at = [i + begin for i, begin in zip(p, begins, strict=True)]
        return within(at, conv.y, y(n, g * o_group + o, *at))

    return te.compute((conv.batch, conv.groups, o_group, *extents), element, name="y_grouped")


def canonical(conv: Convolution) -> dict[str, Stage]:
    return {name: te.placeholder(shape, "float32", name) for name, shape in conv.shapes.items()}


def in_memory(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_forward(conv: Convolution) -> None:
    problem = Case("ConvTransposeBackpropData", conv).call.problem()
    stages, arrays, o_group = canonical(conv), operands(conv, "y"), conv.o // conv.groups
    w = te.compute(
        (conv.groups, *conv.k, conv.c // conv.groups, o_group),
        lambda g, *rest: stages["w"](g * o_group + rest[-1], rest[-2], *rest[:-2]),
        name="w_grouped",
    )
    total = forward.forward(problem, im2col(conv, stages["x"]), w, conv.y)
    found = evaluated([stages["x"], stages["w"]], total, [in_memory(arrays[name]) for name in "xw"])
    result = np.moveaxis(found, -1, 2).reshape(conv.shapes["y"])
    assert np.array_equal(result, reference.gradient(conv, "y", arrays))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_filter_gradient(conv: Convolution) -> None:
    problem = Case("ConvolutionBackpropFilters", conv).call.problem()
    stages, arrays = canonical(conv), operands(conv, "w")
    dy = grouped(conv, stages["y"], [0] * conv.rank, conv.y)
    channels = conv.c // conv.groups, conv.o // conv.groups
    total = filter_gradient.filter_gradient(problem, im2col(conv, stages["x"]), dy, channels)
    found = evaluated([stages["x"], stages["y"]], total, [in_memory(arrays[name]) for name in "xy"])
    result = np.moveaxis(found, (-1, -2), (1, 2)).reshape(conv.shapes["w"])
    assert np.array_equal(result, reference.gradient(conv, "w", arrays))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_parts_of_a_data_gradient(conv: Convolution) -> None:
    """Each element of dx is in one part at most, where the output map says; all others are zero."""
    problem = Case("ConvolutionBackpropData", conv, "NCX", "OIX").call.problem()
    arrays = operands(conv, "x")
    result, is_written = np.zeros(conv.shapes["x"]), np.zeros(conv.shapes["x"], bool)
    parts = data_gradient.phase_convolutions(problem)
    assert {over_y for part in parts for over_y in part.over_y} == {conv is CONVOLUTIONS[1]}
    for part in parts:
        stages = canonical(conv)
        ranges = [part.y_range(axis) for axis in range(conv.rank)]
        y = grouped(conv, stages["y"], [begin for begin, _ in ranges], [end - begin for begin, end in ranges])
        w = stages["w"]
        extents = conv.groups, part.channels, conv.o // conv.groups
        total = part.sum(y, [begin for begin, _ in ranges], part.filter(w, extents, "w_part", "float32"), "sum")
        found = evaluated([stages["y"], w], total, [in_memory(arrays[name]) for name in "yw"])
        for index, at in placed(part.output_map(found.shape), found.shape):
            assert not is_written[at]
            result[at], is_written[at] = found[index], True
    assert np.array_equal(result, reference.gradient(conv, "x", arrays))


def placed(output_map: Callable[..., Any], shape: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The indices of a stage's elements that have a place, and the places."""
    analyzer, found = Analyzer(), []
    for index in product(*map(range, shape)):
        mapped = output_map(*(tirx.IntImm("int64", i) for i in index))
        if bool(analyzer.simplify(tirx.all(True, *mapped.inside))):
            found.append((index, tuple(int(analyzer.simplify(i)) for i in mapped.index)))
    return found
