"""The layers of known networks, whole, as they are compiled for this CPU: in NXC in all types, in NCX in f32 and bf16;
those with three taps also as they are where Winograd's algorithm is allowed.

Integers whose sums f32 holds, so that each element must be PyTorch's in f32, rounded once, or, by Winograd's algorithm,
close to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from _pytest.mark import ParameterSet

import tvmconvgrad as cg
from tests.support.cases.case import OPERATORS, ROLES, Case
from tests.support.cases.convolution import operands
from tests.support.cases.layer import convolution
from tests.support.cases.layouts import to_canonical
from tests.support.cpu.cpus import assert_right
from tvmconvgrad.layers import SUITES, Layer, suite

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

from tests.support.oracles import torch_reference

NXC, NCX = ("NXC", "XIO"), ("NCX", "OIX")
AUTO = "llvm -mcpu=native -algorithm=auto"
EXACT = [(*NXC, "f32"), (*NXC, "f16"), (*NXC, "bf16"), (*NCX, "f32"), (*NCX, "bf16")]
WAYS = [(*way, None) for way in EXACT] + [(*NXC, "f32", AUTO), (*NCX, "f32", AUTO)]
LAYERS = {f"{name}/{layer.name}": layer for name in SUITES for layer in suite(name)}


def ways() -> Iterator[ParameterSet]:
    """Each layer in each way: the second lane has one of every other layer, in turn, and so each operator in each
    way."""
    for turn, (name, layer) in enumerate(LAYERS.items()):
        taken = [way for way in WAYS if way[-1] is None or 3 in layer.kernel]
        for way in taken:
            chosen = turn % 2 == 0 and way == taken[turn // 2 % len(taken)]
            lane = pytest.mark.slow if chosen else pytest.mark.nightly
            text = "-".join((name, *way[:3], "exact" if way[3] is None else "auto"))
            yield pytest.param(layer, *way, marks=lane, id=text)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = cg.get_num_threads()
    cg.set_num_threads(2)
    yield
    cg.set_num_threads(before)


@pytest.mark.parametrize(("layer", "data_format", "filter_format", "dtype", "target"), ways())
def test_same_as_pytorch(layer: Layer, data_format: str, filter_format: str, dtype: str, target: str | None) -> None:
    conv = convolution(layer)
    for operator in [operator for operator in OPERATORS if operator.startswith(layer.op + "B")]:
        result = ROLES[operator][1]
        tensors = operands(conv, result)
        exact = torch_reference.gradient(conv, result, tensors, torch.float32)
        case = Case(operator, conv, data_format, filter_format, dtype)
        kernel = replace(case.call, target=target).compile()
        got = to_canonical(kernel(*case.arrays(tensors)), case.axes(result))
        with np.errstate(over="ignore"):  # of f16
            assert_right(kernel.schedule, got, exact)
